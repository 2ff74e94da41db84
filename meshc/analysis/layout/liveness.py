"""Live ranges of scratch buffers in a tile program, and room for them in a core's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import Point, View
from meshc.ir.views import Range as Window

ALIGNMENT_BYTES = 16


def align(size: int) -> int:
    """``size`` rounded up to the alignment of buffers."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass
class Range:
    """First and last position of a buffer's use."""

    first: int
    last: int


_Around = dict[int, frozenset[str]]
"""Loops and blocks around a statement by their first positions, and the names that decide whether
and how often they run."""


@dataclass(frozen=True)
class _Access:
    """A use of a buffer: where, in which loops, what is around it, and the names that decide what
    it touches there."""

    position: int
    loops: tuple[int, ...]
    around: _Around
    names: frozenset[str]

    def depends(self, common: Collection[int]) -> frozenset[str]:
        """Names that decide whether this use happens, and what it touches, once what has the
        positions ``common`` runs."""
        return self.names.union(*(n for begin, n in self.around.items() if begin not in common))


class _Uses:
    """Every use of every buffer, in text order; loops are known by their first position."""

    def __init__(self) -> None:
        self.of: dict[Value, list[_Access]] = {}
        self.loop_end: dict[int, int] = {}
        self.loop_vars: dict[int, frozenset[str]] = {}
        self.position = 0

    def collect(self, block: Block, loops: tuple[int, ...], around: _Around) -> None:
        """Record the uses in ``block``."""
        started: dict[Value, tuple[list[View], frozenset[str]]] = {}
        for op in block.ops:
            self.position += 1
            begin, known = self.position, _decisive(op)
            inside = loops
            if isinstance(op, tile.For):
                inside = (*loops, begin)
                self.loop_vars[begin] = frozenset({op.var, *op.each})
            for region in op.regions:
                self.collect(region, inside, around | {begin: known})
            self.loop_end[begin] = self.position
            for token in op.tensors():
                views, earlier = started.pop(token, ([], known))
                self.note(views, loops, around, earlier | known)
            self.note(op.views(), loops, around, known)
            if isinstance(op, (tile.Send, tile.Recv, tile.Relay)):
                started[op.result] = op.views(), known
        for views, earlier in started.values():
            self.note(views, loops, around, earlier)

    def note(
        self,
        views: Sequence[View],
        loops: tuple[int, ...],
        around: _Around,
        names: frozenset[str],
    ) -> None:
        """One use of each view here."""
        for view in views:
            access = _Access(self.position, loops, around, names | _places(view))
            self.of.setdefault(view.buffer, []).append(access)

    def range(self, uses: Sequence[_Access]) -> Range:
        """From first to last use; a loop that a buffer enters, leaves or is carried through
        counts whole.

        Nothing is carried when all uses are inside and none depends on what differs from round to
        round, the loop's variable and the scalars that each round has of its own: what
        the first round reads it has written itself (scratch starts undefined), and every other
        round does the same. What decides whether a block runs that has all uses inside does not
        count: rounds that leave it out use nothing.
        """
        common = set.intersection(*(set(u.around) for u in uses))
        first, last = min(u.position for u in uses), max(u.position for u in uses)
        for begin in sorted({loop for u in uses for loop in u.loops}, reverse=True):
            inside = [u for u in uses if begin in u.loops]
            varies = any(self.loop_vars[begin] & u.depends(common) for u in inside)
            if len(inside) < len(uses) or varies:
                first, last = min(first, begin), max(last, self.loop_end[begin])
        return Range(first, last)


def _decisive(op: Op) -> frozenset[str]:
    """Names that decide where and how often ``op`` runs, and what it touches."""
    found = op.when.free_vars if op.when is not None else frozenset[str]()
    if isinstance(op, tile.For):
        found |= op.count.free_vars
    if isinstance(op, tile.Sweep):
        found |= op.rank.free_vars
    if isinstance(op, tile.Compute):
        for value in op.params.values():
            found |= value.free_vars if isinstance(value, Expr) else frozenset()
    return found


def _places(view: View) -> frozenset[str]:
    """Names that decide which elements ``view`` is."""
    found = frozenset[str]()
    for index in view.indices:
        if isinstance(index, Point):
            found |= index.at.free_vars
        elif isinstance(index, Window):
            found |= index.start.free_vars | index.extent.free_vars
    return found


def live_ranges(module: Module) -> dict[Value, Range]:
    """Where each buffer without a role must keep its content."""
    uses = _Uses()
    for program in module.programs:
        uses.collect(program.body, (), {})
    scratch = {b.value for b in module.buffers if not b.role}
    return {b: uses.range(found) for b, found in uses.of.items() if b in scratch}


def assign_addresses(module: Module, base: int = 0) -> int:
    """Give every buffer an address; returns the bytes used.

    Buffers with a role come first, one after the other; scratch is placed first-fit, largest
    first, where no buffer alive at the same time lies.
    """
    top = base
    for buffer in module.buffers:
        if buffer.role:
            buffer.address = top
            top += align(buffer.type.bytes)
    ranges = live_ranges(module)
    placed: list[tuple[Range, int, int]] = []
    peak = top
    order = sorted((b for b in module.buffers if not b.role), key=lambda b: -align(b.type.bytes))
    for buffer in order:
        live = ranges.get(buffer.value, Range(0, 0))
        size = align(buffer.type.bytes)
        busy = sorted(
            (a, a + s) for r, a, s in placed if r.first <= live.last and live.first <= r.last
        )
        address = top
        for low, high in busy:
            if address + size <= low:
                break
            address = max(address, high)
        buffer.address = address
        placed.append((live, address, size))
        peak = max(peak, address + size)
    return peak


def largest_buffers(module: Module, count: int = 5) -> list[Buffer]:
    """The buffers that take the most room."""
    return sorted(module.buffers, key=lambda b: -b.type.bytes)[:count]
