"""One text for PE classes whose functions differ in constants and in single statements.

Constants that are equal in all classes are written out, the others are read from a table of the
class (``struct constants`` in runtime/csl.h). Where a statement has several forms all of them are
written, and a number of the table says which one belongs to the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.sim.cgen.marked_constants import DESCRIPTORS, MARKED, NUMBER, STATE, STATEMENT, literal
from meshc.sim.descriptors import Dsd

_INDENT = "    "


class Piece:
    """A stretch of text: what stands around its marks, and the kinds and values of these."""

    def __init__(self, text: str) -> None:
        parts = MARKED.split(text)
        self.around, self.kinds, self.values = parts[::3], parts[1::3], parts[2::3]
        self.shape = "\0".join([*self.around, *self.kinds])


class Written:
    """A function of a PE class, or another part of its text: ``text`` with marks, and the
    descriptor constants that these count."""

    def __init__(self, text: str, dsds: Sequence[Dsd]) -> None:
        self.dsds = dsds
        self.pieces = [Piece(part) for part in STATEMENT.split(text)]
        # What all forms of it have in common: what stands around marked statements.
        self.shape = "\0".join(piece.shape for piece in self.pieces[::2])


@dataclass
class Table:
    """The constants of one class: those that are not written out, and its descriptors. What stands
    only in statements of other classes is zero, or None."""

    integers: list[int] = field(default_factory=list)
    reals: list[float] = field(default_factory=list)
    dsds: list[Dsd | None] = field(default_factory=list)


def merge(classes: Sequence[Sequence[Written]]) -> tuple[str, list[Table]]:
    """The common text of classes whose parts are of equal shapes, and the table of each."""
    merger = _Merger(len(classes))
    texts = [merger.part(column) for column in zip(*classes, strict=True)]
    return "".join(texts), merger.tables


class _Merger:
    """Fills the tables while the text is written from its beginning to its end."""

    def __init__(self, classes: int) -> None:
        self.everyone = range(classes)
        self.tables = [Table() for _ in self.everyone]
        self.column: Sequence[Written] = []
        self.state, self.is_noted = 0, False

    def part(self, column: Sequence[Written]) -> str:
        """A part of the text, which each class has in its own form."""
        self.column = column
        pieces = zip(*(written.pieces for written in column), strict=True)
        return "".join(
            self._statement(piece) if number % 2 else self._piece(piece, self.everyone)
            for number, piece in enumerate(pieces)
        )

    def _statement(self, column: Sequence[Piece]) -> str:
        """A statement, in all the forms that it has."""
        forms: dict[str, list[int]] = {}
        for number, piece in enumerate(column):
            forms.setdefault(piece.shape, []).append(number)
        if len(forms) == 1:
            return self._piece(column, self.everyone)
        chosen = [0] * len(column)
        for form, members in enumerate(forms.values()):
            for number in members:
                chosen[number] = form
        which = self._number(chosen)
        first = column[0].around[0]
        indent = first[: len(first) - len(first.lstrip())]
        lines: list[str] = []
        for form, members in enumerate(forms.values()):
            lines.append(f"{indent}{'} else ' if form else ''}if ({which} == {form}) {{")
            lines += [_INDENT + line for line in self._piece(column, members).split("\n")]
        return "\n".join([*lines, f"{indent}}}"])

    def _piece(self, column: Sequence[Piece], members: Sequence[int]) -> str:
        """A piece that is alike in all ``members``, apart from what is marked."""
        first = column[members[0]]
        is_one = all(column[number] is first for number in members)
        parts = [first.around[0]]
        for mark, (kind, after) in enumerate(zip(first.kinds, first.around[1:], strict=True)):
            values = [first.values[mark]] * len(members)
            if not is_one:
                values = [column[number].values[mark] for number in members]
            parts.append(self._mark(kind, values, members))
            parts.append(after)
        return "".join(parts)

    def _mark(self, kind: str, values: list[str], members: Sequence[int]) -> str:
        if kind == STATE:
            return self._state(values[0])
        if kind == DESCRIPTORS:
            return self._descriptors(values, members)
        if all(value == values[0] for value in values):
            return literal(kind, values[0])
        given = dict(zip(members, values, strict=True))
        if kind == NUMBER:
            return self._number([int(given.get(number, 0)) for number in self.everyone])
        for number, table in enumerate(self.tables):
            table.reals.append(float(given.get(number, 0)))
        return f"p->k->f[{len(self.tables[0].reals) - 1}]"

    def _number(self, values: list[int]) -> str:
        """An integer of the table, of each class its own."""
        for table, value in zip(self.tables, values, strict=True):
            table.integers.append(value)
        return f"p->k->n[{len(self.tables[0].integers) - 1}]"

    def _descriptors(self, values: list[str], members: Sequence[int]) -> str:
        at = len(self.tables[0].dsds)
        count = int(values[0].split()[1])
        for table in self.tables:
            table.dsds += [None] * count
        for number, value in zip(members, values, strict=True):
            first = int(value.split()[0])
            self.tables[number].dsds[at:] = self.column[number].dsds[first : first + count]
        return str(at)

    def _state(self, value: str) -> str:
        """The number of a state in the text; each function counts its own."""
        if value == "0":
            self.state = 0
        elif not self.is_noted:
            self.state += 1
        self.is_noted = value != "0" and not self.is_noted
        return str(self.state)
