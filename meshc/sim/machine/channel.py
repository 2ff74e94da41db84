"""Wavelets waiting at a PE: bursts of one color in order of arrival."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol, TypeAlias

import numpy as np


class Waiter(Protocol):
    """An operation that waits for wavelets, for elements of a FIFO or for room."""

    name: str
    place: str
    srcs: list[Any]
    n: int
    done_count: int
    resume: bool

    def progress(self, now: int) -> None:
        """Go on with what has arrived."""

    def again(self) -> None:
        """There is room again."""

    def release(self) -> None:
        """There is room for what was sent last."""


class Burst:
    """Wavelets in a row: payloads, time of the first, cycles between two.

    ``control`` marks a single control wavelet.
    """

    __slots__ = ("control", "credit", "data", "period", "pos", "t0")

    def __init__(
        self, data: Any, t0: int, period: int = 1, control: bool = False,
        credit: Credit | None = None,
    ) -> None:  # fmt: skip
        self.credit = credit
        self.data = data
        self.pos = 0
        self.t0 = t0
        self.period = period
        self.control = control

    def time_of(self, ahead: int) -> int:
        """Arrival time of a wavelet, counted from the first one not yet taken."""
        return self.t0 + (self.pos + ahead) * self.period

    def end(self) -> int:
        """The cycle after the last wavelet."""
        return self.t0 + (len(self.data) - 1) * self.period + 1

    def left(self) -> int:
        """Wavelets not yet taken."""
        return len(self.data) - self.pos

    def moved(self, t0: int) -> Burst:
        """The same wavelets at another place, the first at ``t0``."""
        return Burst(self.data, t0, self.period, self.control, self.credit)


class Credit:
    """Wavelets of one sender and color that are under way, with ``--strict-queues``.

    ``room`` is how many the queues at both ends and the routers between them hold. An operation
    that has all its data sends everything and is over when no more than that are left; one that
    passes wavelets on takes no more than fit. What leaves the fabric in a cycle makes room after
    it, for everybody at once: it is added to ``refunds``, and :meth:`settle` gives it back.
    """

    __slots__ = ("held", "outstanding", "refunds", "room", "sender", "stalled")

    def __init__(
        self, room: int = 0, sender: tuple[int, int] = (0, 0), refunds: Refunds | None = None
    ) -> None:
        """``sender``: the number of a PE, and a color."""
        self.outstanding = 0
        self.room = room
        self.sender = sender
        self.refunds: Refunds = {} if refunds is None else refunds
        self.held: deque[Waiter] = deque()
        self.stalled: deque[Waiter] = deque()

    def consume(self, count: int) -> None:
        """Wavelets left the fabric; fewer than none where a router makes copies."""
        self.refunds[self] = self.refunds.get(self, 0) + count

    def settle(self) -> None:
        """A cycle is over: operations that found no room go on in the next one if there is room."""
        while self.held and self.outstanding <= self.room:
            self.held.popleft().release()
        while self.stalled and self.outstanding < self.room:
            self.stalled.popleft().again()


# Wavelets that left the fabric in a cycle, by what they count for.
Refunds: TypeAlias = dict[Credit, int]


class Channel:
    """All bursts of one color that arrived at one PE, and the operations that wait for them.

    ``free_at`` is when the last of them has arrived; the data task starts at ``open_at`` or later.
    """

    __slots__ = ("blocked", "bursts", "color", "free_at", "open_at", "task", "waiting")

    def __init__(self, color: int) -> None:
        self.color = color
        self.free_at = 0
        self.open_at = 0
        self.bursts: deque[Burst] = deque()
        self.waiting: deque[Waiter] = deque()
        self.blocked = True
        self.task: Any = None

    def take(self, count: int) -> tuple[Any, int, int]:
        """Up to ``count`` wavelets of the first burst: payloads, first and last arrival."""
        burst = self.bursts[0]
        start, stop = burst.pos, min(burst.pos + count, len(burst.data))
        first, last = burst.time_of(0), burst.time_of(stop - start - 1)
        burst.pos = stop
        if burst.credit is not None:
            burst.credit.consume(stop - start)
        if stop == len(burst.data):
            self.bursts.popleft()
        return burst.data[start:stop], first, last

    def pending(self) -> int:
        """The number of wavelets waiting."""
        return sum(b.left() for b in self.bursts)


class FifoState:
    """The contents of a FIFO of a PE. ``t`` is the time of the last change."""

    __slots__ = ("capacity", "data", "events", "read_length", "readers", "t", "write_length",
                 "writers")  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = np.zeros(0, np.uint32)
        self.readers: deque[Waiter] = deque()
        self.writers: deque[Waiter] = deque()
        self.events = {"full": False, "empty": False}
        self.t = 0
        self.read_length = 0
        self.write_length = 0
