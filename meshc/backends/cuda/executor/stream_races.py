"""Two streams in the executor: which orders their events allow, and what races.

Launches run one after the other, in an order that the schedule of a run chooses among those that
streams and events allow; kernels of both streams never run at the same moment. What two of them use
without an order between them is a race in every schedule: a kernel reads what its parameters point
to, and writes what they point to without ``const``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from meshc.analysis.cuda.stream_turns import COMMUNICATION
from meshc.backends.cuda.executor.cpu_kernels import Mode
from meshc.backends.cuda.launches import Launch, part_of
from meshc.backends.cuda.queues import Queue, Queued
from meshc.support.diagnostics import fail

_FORWARD, _BACKWARD = ("forward",), ("reverse", "starve_warp", "starve_block")


def written_by(text: str, kernel: str) -> tuple[bool, ...]:
    """Whether each parameter of ``kernel`` in its ``text`` points to what may be written. Raises
    ValueError for a text without it."""
    found = re.search(rf"\b{kernel}\(([^()]*)\)\s*{{", text)
    if found is None:
        raise ValueError(f"no kernel {kernel} in its text")
    parameters = (" ".join(one.split()) for one in found.group(1).split(","))
    return tuple("*" in one and not one.startswith("const ") for one in parameters)


def known_before(queue: Queue) -> list[int]:
    """The launches that are done before each launch starts, a bit for each: those in front of it on
    its stream, and those that the event it waits for is behind. Raises ``cuda-executor`` for an
    event that nothing has recorded."""
    known: list[int] = []
    latest: dict[str, int] = {}
    recorded: dict[str, int] = {}
    for place, (one, _) in enumerate(queue):
        if one.waits and one.waits not in recorded:
            fail(
                "cuda-executor",
                f"{_shown(queue[place])} waits for the event {one.waits}, which nothing in front "
                "of it records",
            )
        behind = [latest.get(one.stream), recorded.get(one.waits) if one.waits else None]
        found = 0
        for other in behind:
            if other is not None:
                found |= known[other] | 1 << other
        known.append(found)
        latest[one.stream] = place
        if one.records:
            recorded[one.records] = place
    return known


def check_races(
    queue: Queue, known: Sequence[int], written: Mapping[str, tuple[bool, ...]]
) -> None:
    """Raise ``cuda-executor`` where two launches of ``queue`` use the same memory, one of them
    writes it, and neither is done before the other starts. ``written`` is by kernel."""
    writers: dict[tuple[str, int | None], int] = {}
    readers: dict[tuple[str, int | None], list[int]] = {}
    for place, (one, layer) in enumerate(queue):
        for memory, writes in _uses(one.launch, layer, written[one.launch.kernel]):
            others = [writers[memory]] if memory in writers else []
            if writes:
                others += readers.get(memory, [])
            for other in others:
                if other == place or known[place] >> other & 1:
                    continue
                fail(
                    "cuda-executor",
                    f"a race between streams: {_shown(queue[place])} "
                    f"{'writes' if writes else 'reads'} {memory[0]}, which {_shown(queue[other])} "
                    "uses, and no event orders them",
                )
            if writes:
                writers[memory], readers[memory] = place, []
            else:
                readers.setdefault(memory, []).append(place)


def allowed_order(queue: Queue, known: Sequence[int], mode: Mode) -> Iterator[tuple[Queued, int]]:
    """The launches of ``queue`` in an order that ``known`` allows: as they were queued, the stream
    of communication always first, or drawn."""
    waiting: dict[str, list[int]] = {}
    for place, (one, _) in enumerate(queue):
        waiting.setdefault(one.stream, []).append(place)
    draw, done = np.random.default_rng(mode.seed), 0
    while any(waiting.values()):
        ready = [places[0] for places in waiting.values() if places]
        ready = [place for place in ready if not known[place] & ~done]
        choose = _chooser(mode, draw)
        place = choose(sorted(ready), queue)
        waiting[queue[place][0].stream].pop(0)
        done |= 1 << place
        yield queue[place]


def _chooser(mode: Mode, draw: np.random.Generator) -> Callable[[Sequence[int], Queue], int]:
    if mode.schedule in _FORWARD:
        return lambda ready, queue: ready[0]
    if mode.schedule in _BACKWARD:
        return lambda ready, queue: min(
            ready, key=lambda place: queue[place][0].stream != COMMUNICATION
        )
    return lambda ready, queue: int(draw.choice(ready))


def _uses(
    launch: Launch, layer: int, written: tuple[bool, ...]
) -> Iterator[tuple[tuple[str, int | None], bool]]:
    for argument, writes in zip(launch.arguments, written, strict=True):
        if isinstance(argument, str) and argument and not argument.startswith("@"):
            yield part_of(argument.partition("@")[0], layer), writes


def _shown(queued: tuple[Queued, int]) -> str:
    one, layer = queued
    return f"{one.launch.kernel} of layer {layer} on the stream of {one.stream}"
