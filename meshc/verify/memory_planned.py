"""memory_planned: every buffer has an address, live ones are disjoint, all fit into M."""

from __future__ import annotations

from meshc.analysis.layout.liveness import Range, live_ranges
from meshc.ir.module import Buffer, Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Compare all pairs of buffers that are alive at once."""
    ranges = live_ranges(module)
    always = Range(0, 1 << 60)
    placed: list[tuple[int, int, Range, Buffer]] = []
    for buffer in module.buffers:
        if buffer.address is None:
            fail("memory-unplanned", f"buffer '{buffer.value.name}' has no address")
        live = always if buffer.role else ranges.get(buffer.value, Range(0, 0))
        placed.append((buffer.address, buffer.address + buffer.type.bytes, live, buffer))
    for index, (low, high, live, buffer) in enumerate(placed):
        for start, end, other, rival in placed[:index]:
            together = live.first <= other.last and other.first <= live.last
            if together and low < end and start < high:
                fail(
                    "memory-unplanned",
                    f"buffers '{buffer.value.name}' and '{rival.value.name}' overlap while both "
                    "are alive",
                )
    room = module.the_device().room_bytes
    used = max((high for _, high, _, _ in placed), default=0)
    if room is not None and used > room:
        fail("does-not-fit", f"buffers take {used} bytes of a core, which has {room}")
