"""What passes one item per cycle and is shared: links, ramps, the issue slots of a PE.

Bursts and operations are planned as a whole when they start. Flows that overlap share fairly: a
flow of ``n`` items beside ``k`` others takes (k + 1) n cycles, but not longer than everything
accepted before it plus itself. Flows that were planned earlier keep their times; what they would
have lost is owed by those that come later, so that the total throughput is one per cycle.
"""

from __future__ import annotations

from meshc.sim.machine.channel import Burst


class Pipe:
    """``free_at`` is when all items accepted would be through without gaps; ``ends`` holds the
    end of each flow that may still be under way, ``last`` the latest of them."""

    __slots__ = ("ends", "free_at", "last")

    def __init__(self) -> None:
        self.free_at = 0
        self.last = 0
        self.ends: list[int] = []

    def reserve(self, t: int, n: int, span: int) -> int:
        """Cycles from ``t`` until ``n`` items are through that alone would take ``span``."""
        cycles = max(span, self.share(t, n))
        self.claim(t, n, cycles)
        return cycles

    def share(self, t: int, n: int) -> int:
        """Cycles that ``n`` items take from ``t`` on beside the flows under way."""
        if t >= self.last:
            return n
        flows = sum(end > t for end in self.ends)
        return min(max(self.free_at - t, 0) + n, (flows + 1) * n)

    def claim(self, t: int, n: int, span: int) -> None:
        """Take ``n`` items from ``t`` on, spread over ``span`` cycles."""
        if t >= self.last:
            self.ends.clear()
        else:
            self.ends = [end for end in self.ends if end > t]
        self.ends.append(t + span)
        self.free_at = max(self.free_at, t) + n
        self.last = max(self.last, t + span)

    def carry(self, burst: Burst, t: int) -> Burst:
        """``burst`` as it leaves the pipe when its first wavelet arrives at ``t``."""
        n = len(burst.data)
        span = (n - 1) * burst.period + 1
        cycles = self.reserve(t, n, span)
        if cycles == span:
            return burst if t == burst.t0 else burst.moved(t)
        period = max(burst.period, cycles // n)
        first = t + cycles - ((n - 1) * period + 1)
        return Burst(burst.data, first, period, burst.control, burst.credit)


class Issue:
    """The issue slots of a PE: one vector step per cycle, of the running task or a microthread.

    Microthreads of low priority use the slots that the task leaves: ``main`` is (start, end, steps)
    of its latest stretch of code. Those above the task take its slots; it pays ``stolen`` cycles.
    """

    __slots__ = ("main", "pipe", "stolen")

    def __init__(self) -> None:
        self.pipe = Pipe()
        self.main = (0, 0, 0)
        self.stolen = 0

    def low(self, t: int, n: int, span: int) -> int:
        """Cycles of ``n`` steps of a microthread that yields to the running task."""
        cycles = self.pipe.share(t, n)
        start, end, steps = self.main
        if t < end:
            window = end - t
            cycles = between(cycles, steps * min(window, end - start) // (end - start), window)
        cycles = max(span, cycles)
        self.pipe.claim(t, n, cycles)
        return cycles

    def high(self, t: int, n: int, span: int) -> int:
        """Cycles of ``n`` steps of a microthread that goes before the task."""
        self.pipe.claim(t, n, span)
        self.stolen += n
        return span


def between(n: int, busy: int, window: int) -> int:
    """Cycles for ``n`` steps in the gaps that ``busy`` steps leave over ``window`` cycles."""
    gaps = window - busy
    if n <= gaps:
        return -(-n * window // gaps)
    return busy + n
