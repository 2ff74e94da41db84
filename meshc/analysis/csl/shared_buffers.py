"""Buffers of a CSL program that share memory: those of one type that are never needed together.

A CSL program refers to its buffers by name, so those that share memory are parts of one array, each
from an element of its own on. Descriptors name them as before. Only buffers that neither the host
nor a later run sees may share; when each is needed is what ``analysis/layout/liveness.py`` finds.
"""

from __future__ import annotations

from typing import NamedTuple

from meshc.analysis.csl.banks import buffer_bytes, shifts
from meshc.analysis.csl.codes import KERNEL
from meshc.analysis.layout.liveness import Range, align, live_ranges
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.values import Value

PART = 4
"""Buffers share memory where, apart, they take more than so great a part of a core's memory, and
where weights stay quantised, each of which has a buffer to be decoded to."""


class Home(NamedTuple):
    """The array in which buffers lie, in the order of their declaration."""

    buffers: list[Buffer]
    start: int
    bytes: int

    def offset(self, buffer: Buffer) -> int:
        """The element of the array at which a buffer begins."""
        return ((buffer.address or 0) - self.start) // buffer.type.dtype.bytes


def worth_sharing(module: Module) -> bool:
    """Whether the buffers that may share memory take much of it, or several are decoded to."""
    if any(isinstance(op, Compute) and op.kernel == KERNEL for op in module.walk()):
        return True
    ranges = live_ranges(module)
    apart = sum(align(b.type.bytes) for b in module.buffers if b.value in ranges)
    return apart * PART > module.the_device().whole("memory_bytes")


def planned_bytes(module: Module) -> int:
    """Bytes of the buffers as they are placed unless a setting says otherwise."""
    return place(module)[1] if worth_sharing(module) else buffer_bytes(module)


def place(module: Module) -> tuple[dict[Value, int], int]:
    """Addresses at which buffers that are never needed together share memory, and the bytes that
    all of them take: the largest first, each where none that is needed at the same time lies."""
    late, ranges = shifts(module), live_ranges(module)
    found: dict[Value, int] = {}
    top = 0

    def size(buffer: Buffer) -> int:
        shift = late.get(buffer.value.name, 0)
        return align(buffer.type.bytes + shift * buffer.type.dtype.bytes)

    def begins(buffer: Buffer, at: int) -> int:
        return at + late.get(buffer.value.name, 0) * buffer.type.dtype.bytes

    for buffer in module.buffers:
        if buffer.value not in ranges:
            found[buffer.value] = begins(buffer, top)
            top += size(buffer)
    for dtype in DType:
        mine = [b for b in module.buffers if b.value in ranges and b.type.dtype == dtype]
        placed: list[tuple[Range, int, int]] = []
        base = top
        for buffer in sorted(mine, key=lambda b: -size(b)):
            live, at = ranges[buffer.value], base
            busy = (p for p in placed if p[0].first <= live.last and live.first <= p[0].last)
            for low, high in sorted((low, high) for _, low, high in busy):
                if at + size(buffer) <= low:
                    break
                at = max(at, high)
            placed.append((live, at, at + size(buffer)))
            found[buffer.value] = begins(buffer, at)
            top = max(top, at + size(buffer))
    return found, top


def homes(module: Module) -> list[Home]:
    """The arrays that hold the buffers of a module whose memory is planned, in the order of their
    first buffers."""
    spans: list[tuple[int, int, list[Buffer]]] = []
    for buffer in sorted(module.buffers, key=lambda b: b.address or 0):
        address = buffer.address or 0
        first, last = address - address % 16, address + buffer.type.bytes
        if spans and first < spans[-1][1]:
            low, high, inside = spans[-1]
            spans[-1] = (low, max(high, last), [*inside, buffer])
        else:
            spans.append((first, last, [buffer]))
    order = {buffer.value: place for place, buffer in enumerate(module.buffers)}
    found = [
        Home(sorted(inside, key=lambda b: order[b.value]), low, high - low)
        for low, high, inside in spans
    ]
    return sorted(found, key=lambda home: order[home.buffers[0].value])


def wrong_sharing(module: Module) -> str | None:
    """What is wrong with buffers that share memory, in words; None where those are of one type and
    never needed together."""
    ranges = live_ranges(module)
    for home in homes(module):
        for number, one in enumerate(home.buffers):
            for other in home.buffers[:number]:
                if _apart(one, other):
                    continue
                names = f"buffer '{other.value.name}' and buffer '{one.value.name}' share memory"
                mine, theirs = ranges.get(one.value), ranges.get(other.value)
                if mine is None or theirs is None:
                    return f"{names}, and one of them is kept"
                if one.type.dtype != other.type.dtype:
                    return f"{names}, and are of two types"
                if mine.first <= theirs.last and theirs.first <= mine.last:
                    return f"{names}, and are needed together"
    return None


def _apart(one: Buffer, other: Buffer) -> bool:
    """Whether no byte belongs to both."""
    mine, theirs = one.address or 0, other.address or 0
    return mine + one.type.bytes <= theirs or theirs + other.type.bytes <= mine
