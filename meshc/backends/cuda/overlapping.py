"""Chunks of a prompt in two halves, emitted: the launches of a chunk twice, in the order of the
overlap schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshc.analysis.cuda.stream_turns import COMMUNICATION, TURNS, Turn
from meshc.backends.cuda.chunk import Chunk, Launches
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import KERNELS, SECOND
from meshc.backends.cuda.queues import Cut, Overlap, Queued, QueuedStage

_OWN = ("scratch", "symmetric", "signals")
_OWN_INPUTS = ("tokens", "cached", "count")
_FIRST, _SECOND = f"{KERNELS}_", f"{SECOND}_"


@dataclass(frozen=True)
class Splitting:
    """What is asked for: chunks of up to ``tokens``, cut by ``cuts`` (from few tokens to many),
    with collectives of ``multiprocessors`` blocks."""

    tokens: int
    multiprocessors: int
    cuts: tuple[Cut, ...]


def overlapped(chunk: Chunk, launches: Launches, asked: Splitting) -> Overlap:
    """The ``chunk``, whose ``launches`` are those for one piece, in two halves; buffers of the
    second half are added."""
    second = {
        name: _SECOND + name.removeprefix(_FIRST)
        for name, buffer in chunk.buffers.items()
        if name.startswith(_FIRST)
        and (buffer.role in _OWN or name.removeprefix(_FIRST) in _OWN_INPUTS)
    }
    chunk.buffers |= {other: chunk.buffers[name] for name, other in second.items()}

    def of_half(launch: Launch, half: int) -> Launch:
        kernel = chunk.within_budget.get(launch.kernel, launch.kernel)
        names = second if half else {}
        return Launch(kernel, tuple(_renamed(argument, names) for argument in launch.arguments))

    def queued(part: Sequence[Launch], halves: Iterable[int] = (0, 1)) -> tuple[Queued, ...]:
        return tuple(
            one
            for block in _blocks(chunk, part)
            for turn in TURNS
            if turn.half in halves
            for one in _of_turn(chunk, block, turn, of_half)
        )

    return Overlap(
        asked.tokens,
        asked.multiprocessors,
        asked.cuts,
        queued(launches.before),
        tuple(QueuedStage(stage.layers, queued(stage.launches)) for stage in launches.stages),
        queued(launches.after, (1,)),
    )


def _of_turn(
    chunk: Chunk, block: Sequence[Launch], turn: Turn, of_half: Callable[[Launch, int], Launch]
) -> list[Queued]:
    """What is queued in ``turn`` of ``block``: the first launch waits, the last one records."""
    met = turn.stream == COMMUNICATION
    taken = [one for one in block if chunk.kernels[one.kernel].meets == met]
    found = [Queued(of_half(one, turn.half), turn.stream) for one in taken]
    if found:
        waits = turn.waits if len(taken) < len(block) or met else ""
        found[0] = replace(found[0], waits=waits)
        found[-1] = replace(found[-1], records=turn.records)
    return found


def _blocks(chunk: Chunk, part: Sequence[Launch]) -> Iterator[list[Launch]]:
    """``part`` cut in front of each collective; the look-up has none in front of it."""
    block: list[Launch] = []
    for launch in part:
        if block and chunk.kernels[launch.kernel].meets:
            yield block
            block = []
        block.append(launch)
    yield block


def _renamed(argument: str | int, names: dict[str, str]) -> str | int:
    if not isinstance(argument, str):
        return argument
    end = min((argument.index(mark) for mark in "@[" if mark in argument), default=len(argument))
    return names.get(argument[:end], argument[:end]) + argument[end:]
