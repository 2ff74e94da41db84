"""Published values beside predicted ones, with what the published value is to the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Literal

from meshc.cost.predictions import Input
from meshc.published import Row, Scalar, Table

Role = Literal["calibrated", "interpolated", "held out", "arithmetic", "claim", "not modelled"]

ROLES: dict[Role, str] = {
    "calibrated": "a constant was fitted to it",
    "interpolated": "it lies between values of its series that constants were fitted to",
    "held out": "nothing was fitted to it",
    "arithmetic": "it follows from other published values",
    "claim": "a statement about predictions, which holds or not",
    "not modelled": "nothing predicts it",
}
"""What a published value is to the prediction beside it."""


@dataclass(frozen=True)
class Compared:
    """A published value of ``metric`` in ``unit`` and ours; None where nothing predicts it, and
    ``why``.

    ``errors`` are those of several predictions by constants fitted to other rows, of which
    ``predicted`` is the worst. A claim ``holds`` or not. ``uncertain``: the source does not say all
    of the row.
    """

    what: str
    metric: str
    unit: str
    published: Scalar
    predicted: float | str | None
    role: Role
    why: str = ""
    errors: tuple[float, ...] = ()
    holds: bool | None = None
    uncertain: bool = False

    @property
    def error(self) -> float | None:
        """How far our value is from the published one, relative to that; None where either is no
        number."""
        if isinstance(self.predicted, str) or self.predicted is None or self.role == "claim":
            return None
        if isinstance(self.published, str) or not self.published:
            return None
        return self.predicted / self.published - 1

    @property
    def counted(self) -> tuple[float, ...]:
        """The errors that tell how good the prediction is: of values that calibrate nothing."""
        if self.role not in ("held out", "interpolated") or self.error is None:
            return ()
        return self.errors or (self.error,)


@dataclass(frozen=True)
class Section:
    """A table of a paper: its ``name`` on the command line, what predicts (``by``), the numbers of
    devices and the ``constants`` behind it, and ``notes`` on what is off."""

    name: str
    table: Table
    by: str
    rows: tuple[Compared, ...]
    inputs: tuple[Input, ...] = ()
    constants: tuple[Constant, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def title(self) -> str:
        """What the paper calls it, and what it is of."""
        return f"{self.table.paper.partition(',')[0]}: {titled(self.table)}"


@dataclass(frozen=True)
class Constant:
    """A constant that was fitted while the section was made, and to what."""

    name: str
    value: float
    unit: str
    source: str


def titled(table: Table) -> str:
    """``Table 3, ..`` or ``Figure 9, ..`` or the title alone."""
    name = table.name
    if name[0].isdigit() and "." not in name:
        return f"Table {name}, {table.title}"
    if name.startswith("figure-") and name.removeprefix("figure-").isdigit():
        return f"Figure {name.removeprefix('figure-')}, {table.title}"
    if name[0].isdigit():
        return f"section {name}, {table.title}"
    return table.title


def not_modelled(
    table: Table, why: str, rows: Sequence[Row] | None = None, metrics: Sequence[str] = ()
) -> Iterator[Compared]:
    """Values that nothing predicts."""
    for row in table.rows if rows is None else rows:
        for metric in metrics or row.values:
            if metric in row.values:
                yield compared(table, row, metric, None, "not modelled", why)


def claimed(
    table: Table, found: Mapping[str, tuple[str, bool]], why: Callable[[str], str]
) -> tuple[Compared, ...]:
    """Statements of a paper's text by their names: those that are ``found`` are predicted in words
    and hold or not; of others ``why`` they are not modelled."""

    def one(row: Row) -> Compared:
        name, published = row.text("what"), row.values["value"]
        words, holds = found.get(name, (None, None))
        role: Role = "claim" if name in found else "not modelled"
        reason = "" if name in found else why(name)
        what = name.replace("_", " ")
        return Compared(what, "value", "", published, words, role, reason, holds=holds)

    return tuple(map(one, table.rows))


def compared(
    table: Table,
    row: Row,
    metric: str,
    predicted: float | str | None,
    role: Role,
    why: str = "",
    errors: tuple[float, ...] = (),
) -> Compared:
    """A value of ``row``, and ours."""
    return Compared(
        labelled(row),
        metric,
        table.metrics[metric],
        row.values[metric],
        predicted,
        role,
        why,
        errors,
        uncertain=row.uncertain,
    )


def labelled(row: Row) -> str:
    """The conditions of a row in words."""
    return ", ".join(_spelled(name, value) for name, value in row.conditions.items())


def _spelled(name: str, value: Scalar) -> str:
    if name == "side":
        return f"{value}x{value}"
    if name in ("model", "system", "policy", "op", "what", "trace", "device", "baseline", "load"):
        return str(value).replace("_", " ")
    return name if value is True else f"{name.replace('_', ' ')} {value}"


def role_of(row: Row, metric: str, series: Sequence[Row] = (), along: str = "") -> Role:
    """Whether a value calibrates, lies between values of its ``series`` that do, or neither."""
    if metric in row.calibrated:
        return "calibrated"
    if along:
        here = row.conditions[along]
        fitted = [one.conditions[along] for one in series if metric in one.calibrated]
        if any(at < here for at in fitted) and any(at > here for at in fitted):  # type: ignore[operator]
            return "interpolated"
    return "held out"


def mean_error(errors: Sequence[float]) -> float | None:
    """The mean of the absolute values; None of no errors."""
    return mean(map(abs, errors)) if errors else None
