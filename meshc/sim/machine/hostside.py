"""What the host asks of a machine: launches, streams, and running until something has happened.

Both back ends offer these methods; host code uses nothing else of a machine that could be slow
to reach in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshc.sim.machine.channel import Burst

if TYPE_CHECKING:
    from meshc.sim.machine.fabric import Fabric
    from meshc.sim.machine.pe import Pe

Key = tuple[int, int, int]


class _Machine(Protocol):
    """The parts of a machine that the methods below use."""

    now: int
    fabric: Fabric
    pes: dict[tuple[int, int], Pe]

    def run_until(self, goal: Callable[[], bool]) -> bool: ...
    def at(self, time: int, action: Callable[..., None]) -> None: ...
    def collected(self, key: Key) -> int: ...
    def bursts_to_host(self, key: Key) -> list[Burst]: ...


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

    def enter(self: _Machine, key: Key, words: Any) -> None:
        """The host sends words into a port of a layout."""
        self.fabric.enter(key, Burst(words, self.now + 1))


def _nothing(time: int) -> None:
    """An event that only lets time pass."""
