"""Data structure descriptors (DSDs): the values that vector operations take.

Immutable; edits make new ones. Addresses are byte addresses, extents count elements.
"""

from __future__ import annotations

from typing import NamedTuple

ENDLESS = 0x7FFF


class Mem(NamedTuple):
    """A strided stretch of memory.

    ``dims`` is () for one dimension, else ((extent, byte stride), ...) outermost first. ``scalar``
    marks a pointer operand, which has no length of its own.
    """

    addr: int
    n: int
    stride: int
    esize: int
    indexed: bool = False
    dims: tuple[tuple[int, int], ...] = ()
    scalar: bool = False

    def step(self, itemsize: int) -> int:
        """Bytes between elements: the stride counts elements of the operation's type."""
        if itemsize == self.esize or not self.esize:
            return self.stride
        return self.stride // self.esize * itemsize


class FabIn(NamedTuple):
    """Wavelets of a color; ``color`` -1 means the color bound to the queue."""

    color: int
    n: int
    queue: int
    simd: int = 0
    priority: int = 0


class FabOut(NamedTuple):
    """Wavelets to a color; ``simd`` is 32 or 64 when two 16-bit values share a wavelet."""

    color: int
    n: int
    queue: int
    control: bool = False
    indexed: bool = False
    advance: bool = False
    simd: int = 0
    zero: int = 0
    priority: int = 0


class Fifo(NamedTuple):
    """A bounded first-in-first-out buffer of ``capacity`` elements in memory."""

    number: int
    addr: int
    capacity: int
    esize: int
    activate_push: int = -1
    activate_pop: int = -1


Dsd = Mem | FabIn | FabOut | Fifo
