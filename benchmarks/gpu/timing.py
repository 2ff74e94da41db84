"""Time on the device: tasks in turn, between events, medians."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.streams import Stream


@dataclass(frozen=True)
class Task:
    """Something to be timed: ``launch`` starts it on the device's stream.

    ``parts`` is how many equal things it does (layers, say), ``bytes`` what one of them reads.
    """

    name: str
    launch: Callable[[], None]
    bytes: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Timed:
    """Seconds of one part, for each repetition; ``bytes`` that the part reads."""

    name: str
    seconds: tuple[float, ...]
    bytes: int

    @property
    def median(self) -> float:
        """Median seconds of a part."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        if len(self.seconds) < 2 or not self.median:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.median if self.median else 0.0


def in_turn(device: Device, tasks: Sequence[Task], repeats: int) -> list[Timed]:
    """Time the tasks in turn ``repeats`` times, so that changes of clocks fall on all alike.

    Before each round the last task runs untimed, so that the device is never idle before a timed
    one and the host is ahead of it. Raises MeshcError for a kernel's fault.
    """
    found: list[list[float]] = [[] for _ in tasks]
    for repetition in range(repeats + 2):
        seconds = _round(device.stream, tasks)
        if repetition >= 2:
            for task, one, all_ in zip(tasks, seconds, found, strict=True):
                all_.append(one / task.parts)
    return [Timed(t.name, tuple(f), t.bytes) for t, f in zip(tasks, found, strict=True)]


def _round(stream: Stream, tasks: Sequence[Task]) -> list[float]:
    tasks[-1].launch()
    events = [stream.record()]
    for task in tasks:
        task.launch()
        events.append(stream.record())
    stream.synchronize()
    pairs = itertools.pairwise(events)
    seconds = [late.milliseconds_since(early) / 1e3 for early, late in pairs]
    for event in events:
        event.free()
    return seconds
