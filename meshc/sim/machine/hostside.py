"""What the host asks of a machine: launches, streams, and running until something has happened.

Both back ends offer these methods; host code uses nothing else of a machine that could be slow
to reach in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from meshc.sim.machine.channel import Burst, Credit
from meshc.sim.machine.cycle_model import Costs
from meshc.sim.machine.fabric import Fabric
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.run_options import Options

Key = tuple[int, int, int]


class _Machine(Protocol):
    """The parts of a machine that the methods below use."""

    now: int
    fabric: Fabric
    pes: dict[tuple[int, int], Pe]
    costs: Costs
    options: Options
    host_credits: dict[Key, Credit]

    def run_until(self, goal: Callable[[], bool]) -> bool: ...
    def at(self, time: int, action: Callable[..., None], argument: Any = ...) -> None: ...
    def collected(self, key: Key) -> int: ...
    def bursts_to_host(self, key: Key) -> list[Burst]: ...
    def host_credit(self, key: Key, words: Any) -> Credit | None: ...


class HostSide:
    """The Python machine's answers to the host. Streams are named by (x, y, color)."""

    def launch(self: _Machine, pe: Pe, name: str, values: tuple[Any, ...]) -> None:
        """Start a function on a PE now."""
        pe.launches.append((self.now, name, values))
        pe.wake(self.now)

    def run_until_unblocked(self: _Machine, wanted: int) -> bool:
        """Run until every PE has unblocked the command stream ``wanted`` times."""
        pes = [pe for pe in self.pes.values() if pe.unblocked < wanted]

        def through() -> bool:
            while pes and pes[-1].unblocked >= wanted:
                pes.pop()
            return not pes

        return self.run_until(through)

    def run_for(self: _Machine, cycles: int) -> None:
        """Let time pass, in which free running code goes on."""
        until = self.now + cycles
        self.at(until, _nothing)
        self.run_until(lambda: self.now >= until)

    def run_until_received(self: _Machine, keys: list[Key], count: int) -> Key | None:
        """Run until each stream holds ``count`` wavelets; else a stream that lacks some."""
        waiting = list(keys)
        for key in keys:
            self.fabric.read(key, count)
        self.fabric.settle_credits()

        def arrived() -> bool:
            while waiting and self.collected(waiting[-1]) >= count:
                waiting.pop()
            return not waiting

        return None if self.run_until(arrived) else waiting[-1]

    def streams_to_host(self: _Machine, key: Key) -> bool:
        """Whether a PE sends a color to the host."""
        return key in self.fabric.sinks

    def bursts_to_host(self: _Machine, key: Key) -> list[Burst]:
        """What a stream holds."""
        sinks = self.fabric.sinks
        bursts: list[Burst] = sinks[key] if key in sinks else self.fabric.streams[key]
        return bursts

    def collected(self: _Machine, key: Key) -> int:
        """The number of wavelets a stream holds."""
        return sum(b.left() for b in self.bursts_to_host(key))

    def take(self: _Machine, key: Key, count: int) -> Any:
        """The first ``count`` wavelets of a stream; the others stay."""
        bursts = self.bursts_to_host(key)
        everything = np.concatenate([b.data[b.pos :] for b in bursts])
        bursts[:] = [Burst(everything[count:], self.now)]
        return everything[:count]

    def enter(self: _Machine, key: Key, words: Any, control: bool = False) -> None:
        """The host sends words, or a control wavelet, into a port of a layout."""
        credit = self.host_credit(key, words)
        self.fabric.enter(key, Burst(words, self.now + 1, 1, control, credit))

    def inject_stream(self: _Machine, key: Key, words: Any) -> None:
        """The host sends words to the RAMP of a PE."""
        at = self.now + self.costs.ramp
        burst = Burst(words, at, credit=self.host_credit(key, words))
        pe = self.pes[key[0], key[1]]
        pe.at(at, pe.deliver, (key[2], burst))

    def host_credit(self: _Machine, key: Key, words: Any) -> Credit | None:
        """Account for words that the host sends, with strict queues."""
        if not self.options.strict_queues:
            return None
        room = self.costs.input_depth + self.costs.host_depth
        if key not in self.host_credits:
            self.host_credits[key] = Credit(room, refunds=self.fabric.refunds)
        credit = self.host_credits[key]
        credit.outstanding += len(words)
        return credit

    def run_until_sent(self: _Machine, keys: list[Key]) -> tuple[Key, Credit] | None:
        """Run until the queues hold what the host has sent; else a stream that is stuck."""
        credits = [(key, self.host_credits[key]) for key in keys if key in self.host_credits]

        def full() -> tuple[Key, Credit] | None:
            return next(((k, c) for k, c in credits if c.outstanding > c.room), None)

        self.run_until(lambda: full() is None)
        return full()


def _nothing(time: int) -> None:
    """An event that only lets time pass."""
