"""Numbers that papers published and that an H200 was timed at: facts, a file for each source.

A file of ``data`` names its ``paper`` and has tables, each with a ``name``, a ``title``, the units
of its ``metrics`` and ``rows``. What else a row says are the conditions of its values; those that
all rows share are ``given``. ``calibrated`` lists the metrics of a row that a number of a device
was fitted to, ``uncertain`` marks what the source's text has lost or does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshc.support.declared_values import toml_of

Scalar = str | int | float | bool
SOURCES = ("waferllm", "layered_prefill", "clusterfusion", "tokenweave", "recorded_h200")

_MARKS = ("calibrated", "uncertain")


@dataclass(frozen=True)
class Row:
    """Values by metric, and the ``conditions`` under which they were published."""

    conditions: Mapping[str, Scalar]
    values: Mapping[str, Scalar]
    calibrated: frozenset[str] = frozenset()
    uncertain: bool = False

    def number(self, metric: str) -> float:
        """A value. Raises KeyError where the row has none, ValueError where it is a word."""
        return float(self.values[metric])

    def text(self, name: str, default: str = "") -> str:
        """A condition."""
        return str(self.conditions.get(name, default))

    def whole(self, name: str, default: int = 0) -> int:
        """A condition that counts something."""
        return int(self.conditions.get(name, default))


@dataclass(frozen=True)
class Table:
    """A table, a figure or a list of claims; ``metrics`` are units by metric."""

    paper: str
    name: str
    title: str
    metrics: Mapping[str, str]
    rows: tuple[Row, ...]
    note: str = ""

    def where(self, **conditions: Scalar) -> tuple[Row, ...]:
        """The rows that have all of ``conditions``."""
        return tuple(
            row
            for row in self.rows
            if all(row.conditions.get(name) == value for name, value in conditions.items())
        )


@cache
def tables(source: str) -> Mapping[str, Table]:
    """The tables of one of :data:`SOURCES` by name, in the order of its file."""
    whole = toml_of("meshc.published", f"data/{source}.toml")
    return {one["name"]: _table(whole["paper"], one) for one in whole["table"]}


def table(source: str, name: str) -> Table:
    """A table of a source."""
    return tables(source)[name]


def _table(paper: str, read: Mapping[str, object]) -> Table:
    metrics, given, rows = read["metrics"], read.get("given", {}), read["rows"]
    assert isinstance(metrics, dict) and isinstance(given, dict) and isinstance(rows, list)
    return Table(
        paper,
        str(read["name"]),
        str(read["title"]),
        metrics,
        tuple(_row({**given, **row}, metrics) for row in rows),
        str(read.get("note", "")),
    )


def _row(read: Mapping[str, Scalar], metrics: Mapping[str, str]) -> Row:
    own = {name: value for name, value in read.items() if name not in _MARKS}
    marked = read.get("calibrated", ())
    assert not isinstance(marked, (str, int, float))
    return Row(
        {name: value for name, value in own.items() if name not in metrics},
        {name: value for name, value in own.items() if name in metrics},
        frozenset(marked),
        bool(read.get("uncertain", False)),
    )
