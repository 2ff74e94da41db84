"""Dims in blocks: what is known only when a program runs, for operations of constant extents.

A descriptor of several dims has constant extents, and setting the length of one of a single dim
takes cycles at each use. So such a dim is taken in blocks of so many elements, in a loop, and what
no block holds comes behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from meshc.analysis.csl.strided_windows import Dim, Window, own
from meshc.ir.affine import Expr


class Stretch(NamedTuple):
    """``length`` elements of a dim at once, the first at ``start``; as often as ``loop`` says with
    a variable called ``variable``, at most ``times``."""

    start: Expr
    length: int
    times: int
    loop: Dim | None
    variable: str


def stretches(dim: Dim, length: int, variable: str) -> list[Stretch]:
    """``dim`` in parts of ``length``, and what is left: in one part, or one by one where it is
    known only when the program runs."""
    times, rest = divmod(dim.extent, length)
    at = own(variable)
    if dim.count is None:
        loop = Dim(times, length) if times > 1 else None
        found = [Stretch(at * length if loop else Expr.const(0), length, times, loop, variable)]
        left = Stretch(Expr.const(times * length), rest, 1, None, variable)
        return [*found, left] if rest else found
    found = [_blocks(dim, length, variable)]
    singles = Dim(length - 1, 1, dim.count % length)
    left = Stretch(dim.count // length * length + at, 1, rest, singles, variable)
    return [*found, left] if length > 1 else found


def power_of_two(most: int) -> int:
    """The greatest power of two up to ``most``, which is positive."""
    return 1 << (most.bit_length() - 1)


def blocks_of(dims: Sequence[Dim]) -> list[int]:
    """The blocks in which dims whose extents are known only when the program runs may be taken:
    powers of two; none where all are known."""
    most = max((dim.extent for dim in dims if dim.count is not None), default=0)
    return [1 << power for power in range(most.bit_length())]


class Piece(NamedTuple):
    """A part of the operands of one operation on elements, ``times`` in a ``loop`` if there is
    one."""

    windows: list[Window]
    times: int
    loop: tuple[str, Dim] | None


def longest(windows: Sequence[Window]) -> int:
    """Which dim of the first of ``windows`` has the most elements."""
    return max(range(len(windows[0].dims)), key=lambda n: windows[0].dims[n].extent)


def lengths(windows: Sequence[Window]) -> list[int]:
    """The lengths in which the longest dim, whose extent is known, may be taken: of so many pieces
    as even as can be, the longest first."""
    extent = windows[0].dims[longest(windows)].extent
    return sorted({-(-extent // count) for count in range(2, extent + 1)}, reverse=True)


def pieces(windows: Sequence[Window], length: int) -> list[Piece]:
    """Operands of extents that are known in pieces of ``length`` of their longest dim, and what is
    left of it. The first has all dims, others perhaps only the leading ones."""
    place = longest(windows)
    found = []
    for part in stretches(windows[0].dims[place], length, "row"):
        parts = [cut(one, place, part.start, part.length) for one in windows]
        found.append(Piece(parts, part.times, (part.variable, part.loop) if part.loop else None))
    return found


class Rest(NamedTuple):
    """Elements that no block holds; there are some where all of ``counts`` are positive."""

    counts: list[Expr]
    windows: list[Window]


def whole_blocks(dims: Sequence[Dim]) -> list[int]:
    """The blocks that fill the most that all dims can be whose extents are known only when the
    program runs; none where all are known."""
    most = [dim.extent for dim in dims if dim.count is not None]
    return [n for n in range(2, min(most, default=0) + 1) if not any(m % n for m in most)]


class Blocks(NamedTuple):
    """Operands of one operation on elements: what ``loops`` do a block at a time, with ``whole``
    windows of constant extents, and the ``rests`` that are left; where the last blocks go ``over``
    the end there are none."""

    loops: list[Stretch]
    whole: list[Window]
    rests: list[Rest]
    over: bool = False

    @property
    def times(self) -> int:
        """How often a block is taken at most."""
        return prod(loop.times for loop in self.loops)


def in_blocks(windows: Sequence[Window], block: int, over: bool = False) -> Blocks:
    """``windows`` of which the first has all dims, and others perhaps only the leading ones, with
    at most ``block`` elements at once of dims that are known only when the program runs. The last
    block of each may go ``over`` its end: then nothing is left, and ``block`` is out of
    :func:`whole_blocks`."""
    if over:
        return _in_whole_blocks(windows, block)
    loops: list[Stretch] = []
    rests: list[Rest] = []
    whole, covered = list(windows), list(windows)
    counts: list[Expr] = []
    for place, dim in enumerate(windows[0].dims):
        if dim.count is None:
            continue
        length = min(block, power_of_two(dim.extent))
        loop = _blocks(dim, length, ("row", "column")[min(len(loops), 1)])
        held, left = dim.count // length * length, dim.count % length
        if length > 1:
            singles = [cut(w, place, held, length - 1, left) for w in covered]
            rests.append(Rest([*counts, left], singles))
            covered = [cut(w, place, Expr.const(0), dim.extent, held) for w in covered]
            counts.append(held)
        whole = [cut(w, place, loop.start, length) for w in whole]
        loops.append(loop)
    return Blocks(loops, whole, rests)


def _in_whole_blocks(windows: Sequence[Window], block: int) -> Blocks:
    loops: list[Stretch] = []
    whole = list(windows)
    for place, dim in enumerate(windows[0].dims):
        if dim.count is None:
            continue
        start, times = Expr.const(0), dim.extent // block
        if times > 1:  # of one block there is one, as no extent is 0
            variable = ("row", "column")[min(len(loops), 1)]
            loop = Dim(times, block, (dim.count + (block - 1)) // block)
            start = own(variable) * block
            loops.append(Stretch(start, block, times, loop, variable))
        whole = [cut(w, place, start, block) for w in whole]
    return Blocks(loops, whole, [], over=True)


def _blocks(dim: Dim, length: int, variable: str) -> Stretch:
    """The blocks of a dim whose extent is known only when the program runs."""
    assert dim.count is not None
    times = dim.extent // length
    return Stretch(
        own(variable) * length, length, times, Dim(times, length, dim.count // length), variable
    )


def cut(window: Window, place: int, start: Expr, extent: int, count: Expr | None = None) -> Window:
    """``window`` with a part of the dim at ``place``, as far as it has this dim."""
    if place >= len(window.dims):
        return window
    dims = [*window.dims]
    stride = dims[place].stride
    dims[place] = Dim(extent, stride, count)
    return window.moved(start * stride).inner(dims)
