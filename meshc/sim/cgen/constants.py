"""Constants in emitted text that may differ between PE classes which share code.

While a class is written its constants stand in the text between marks. Classes whose text is equal
apart from them share one text, in which constants that are equal everywhere are written out and the
others are read from a table of the class (``struct constants`` in runtime/csl.h).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.sim.descriptors import Dsd

_OPEN, _CLOSE = "\x02", "\x03"
_MARKED = re.compile(f"{_OPEN}(.)([^{_CLOSE}]*){_CLOSE}")


def integer(number: int) -> str:
    """An integer constant, marked."""
    return f"{_OPEN}n{number}{_CLOSE}"


def real(number: float) -> str:
    """A floating point constant, marked."""
    return f"{_OPEN}f{number!r}{_CLOSE}"


@dataclass
class Written:
    """The text of one PE class: ``text`` has marks, ``dsds`` its descriptor constants."""

    text: str
    dsds: list[Dsd]

    @property
    def shape(self) -> str:
        """The text without the constants."""
        return _MARKED.sub(lambda m: _OPEN + m[1], self.text)

    @property
    def values(self) -> list[tuple[str, str]]:
        """The marked constants in order: kind and text."""
        return [(m[1], m[2]) for m in _MARKED.finditer(self.text)]


@dataclass
class Table:
    """The constants of one class that are not written out."""

    integers: list[int] = field(default_factory=list)
    reals: list[float] = field(default_factory=list)


def merge(written: Sequence[Written]) -> tuple[str, list[Table]]:
    """The common text of classes of equal shape, and the table of each."""
    rows = [w.values for w in written]
    tables = [Table() for _ in written]
    replaced: list[str] = []
    for column in zip(*rows, strict=True):
        kind = column[0][0]
        if all(entry == column[0] for entry in column):
            replaced.append(_literal(kind, column[0][1]))
        elif kind == "n":
            replaced.append(f"p->k->n[{len(tables[0].integers)}]")
            for table, (_, text) in zip(tables, column, strict=True):
                table.integers.append(int(text))
        else:
            replaced.append(f"p->k->f[{len(tables[0].reals)}]")
            for table, (_, text) in zip(tables, column, strict=True):
                table.reals.append(float(text))
    pieces = iter(replaced)
    return _MARKED.sub(lambda _: next(pieces), written[0].text), tables


def _literal(kind: str, text: str) -> str:
    if kind == "n":
        return integer_literal(int(text))
    number = float(text)
    if math.isnan(number):
        return "(double)NAN"
    if math.isinf(number):
        return "(double)INFINITY" if number > 0 else "(-(double)INFINITY)"
    return f"({text})" if text.startswith("-") else text


def integer_literal(number: int) -> str:
    """A C literal of 64 bits."""
    if number >= 1 << 63:
        return f"{number}u"
    if number == -(1 << 63):
        return "INT64_MIN"
    text = f"{number}ll" if abs(number) >= 1 << 31 else str(number)
    return f"({text})" if number < 0 else text
