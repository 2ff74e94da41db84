"""Variables of a PE program: how each is declared and which bytes of a core it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["buffer", "scratch", "table", "variable"]

ALIGNMENT = 16
"""Every array of elements begins at a multiple of so many bytes, so that vector operations read at
full speed."""

WORD_BYTES = 2
"""Bytes of a pointer, an ``i16`` or a ``bool``, each of which the compiler keeps in a word
(vendor's page on memory: 16-bit words)."""


@dataclass(frozen=True)
class Variable:
    """A variable that takes ``bytes``: of a buffer of the program, of scratch that kernels share, a
    table of constants, or anything else. ``line`` declares it; constants are declared elsewhere."""

    kind: Kind
    bytes: int
    line: str = ""


def word(name: str, kind: str, value: str) -> Variable:
    """A variable of one word."""
    return Variable("variable", WORD_BYTES, f"var {name}: {kind} = {value};")


def bytes_of(variables: Iterable[Variable], *kinds: Kind) -> int:
    """Bytes of the variables of ``kinds``; of all where none is named."""
    return sum(each.bytes for each in variables if not kinds or each.kind in kinds)


def padding(variables: Iterable[Variable]) -> int:
    """The most bytes that alignment adds, in whatever order a compiler places the variables: a
    start at a multiple of ``ALIGNMENT`` for each that is an array."""
    arrays = (each for each in variables if each.kind != "variable" or each.bytes > 2 * WORD_BYTES)
    return sum(-each.bytes % ALIGNMENT for each in arrays)
