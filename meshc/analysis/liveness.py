"""Live ranges of scratch buffers in a tile program, and room for them in a core's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.ir.core import Block, Op
from meshc.ir.kernels import KERNELS
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import View

ALIGNMENT_BYTES = 16


def align(size: int) -> int:
    """``size`` rounded up to the alignment of buffers."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass
class Range:
    """First and last position of a buffer's use."""

    first: int
    last: int


@dataclass(frozen=True)
class _Access:
    position: int
    writes: bool
    loops: tuple[int, ...]


class _Uses:
    """Every use of every buffer, in text order; loops are known by their first position."""

    def __init__(self) -> None:
        self.of: dict[Value, list[_Access]] = {}
        self.loop_end: dict[int, int] = {}
        self.position = 0

    def collect(self, block: Block, loops: tuple[int, ...]) -> None:
        """Record the uses in ``block``."""
        started: dict[Value, list[View]] = {}
        for op in block.ops:
            self.position += 1
            begin = self.position
            inside = (*loops, begin) if isinstance(op, tile.For) else loops
            for region in op.regions:
                self.collect(region, inside)
            self.loop_end[begin] = self.position
            for token in op.tensors():
                self.note(started.pop(token, []), loops)
            for view, writes in touched(op):
                self.note([view], loops, writes)
            if isinstance(op, (tile.Send, tile.Recv)):
                started[op.result] = op.views()
        for views in started.values():
            self.note(views, loops)

    def note(self, views: Sequence[View], loops: tuple[int, ...], writes: bool = False) -> None:
        """One use of each view here."""
        for view in views:
            access = _Access(self.position, writes, loops)
            self.of.setdefault(view.buffer, []).append(access)

    def range(self, uses: Sequence[_Access]) -> Range:
        """From first to last use; a loop that a buffer enters, leaves or is carried through
        counts whole."""
        first, last = min(u.position for u in uses), max(u.position for u in uses)
        for begin in sorted({loop for u in uses for loop in u.loops}, reverse=True):
            inside = [u for u in uses if begin in u.loops]
            if len(inside) < len(uses) or not inside[0].writes:
                first, last = min(first, begin), max(last, self.loop_end[begin])
        return Range(first, last)


def live_ranges(module: Module) -> dict[Value, Range]:
    """Where each buffer without a role must keep its content."""
    uses = _Uses()
    for program in module.programs:
        uses.collect(program.body, ())
    scratch = {b.value for b in module.buffers if not b.role}
    return {b: uses.range(found) for b, found in uses.of.items() if b in scratch}


def touched(op: Op) -> list[tuple[View, bool]]:
    """Views an op uses and whether it overwrites them whole, reading ones first."""
    if isinstance(op, tile.Compute):
        kinds = KERNELS[op.kernel].operands
        pairs = list(zip(op.views(), kinds, strict=True))
        accumulates = op.params.get("accumulate") is True or op.when is not None
        reads = [(v, False) for v, kind in pairs if kind != "out" or accumulates]
        return reads + [(v, _covers(v)) for v, kind in pairs if kind == "out"]
    if isinstance(op, tile.Recv):
        whole = op.combine == "store" and op.when is None
        return [(v, whole and _covers(v)) for v in op.views()]
    return [(v, False) for v in op.views()]


def _covers(view: View) -> bool:
    """Whether a view is (at most apart from unused rows) its whole buffer."""
    return all(not hasattr(i, "at") and str(getattr(i, "start", "0")) == "0" for i in view.indices)


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
