"""Variables of a PE program: how each is declared and which bytes of a core it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from meshc.analysis.csl.words import WORD_BYTES
from meshc.backends.csl.tree import syntax_tree as csl

Kind = Literal["buffer", "scratch", "table", "variable"]

ALIGNMENT = 16
"""Every array of elements begins at a multiple of so many bytes, so that vector operations read at
full speed."""


@dataclass(frozen=True)
class Variable:
    """A variable that takes ``bytes``: of a buffer of the program, of scratch that kernels share, a
    table of constants, or anything else. ``declared`` is where it is, constants elsewhere; ``use``
    is what the pass plan-csl-words counts it under."""

    kind: Kind
    bytes: int
    declared: csl.Declare | None = None
    use: str = ""


def word(name: str, kind: str, value: csl.Operand, use: str) -> Variable:
    """A variable of one word."""
    return Variable("variable", WORD_BYTES, csl.var(name, kind, value), use)


def declarations(variables: Iterable[Variable]) -> list[csl.Declare]:
    """Those of ``variables`` that are declared as such."""
    return [each.declared for each in variables if each.declared is not None]


def bytes_of(variables: Iterable[Variable], *kinds: Kind) -> int:
    """Bytes of the variables of ``kinds``; of all where none is named."""
    return sum(each.bytes for each in variables if not kinds or each.kind in kinds)


def bytes_by_use(variables: Iterable[Variable]) -> dict[str, int]:
    """Bytes of the variables of each use that is named."""
    found: dict[str, int] = {}
    for each in variables:
        if each.use:
            found[each.use] = found.get(each.use, 0) + each.bytes
    return found


def padding(variables: Iterable[Variable]) -> int:
    """The most bytes that alignment adds, in whatever order a compiler places the variables: a
    start at a multiple of ``ALIGNMENT`` for each that is an array."""
    arrays = (each for each in variables if each.kind != "variable" or each.bytes > 2 * WORD_BYTES)
    return sum(-each.bytes % ALIGNMENT for each in arrays)
