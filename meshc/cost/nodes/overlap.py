"""Schedules of an iteration on a GPU of a node, as data: kernels on two streams.

``baseline`` runs a sum over all GPUs and a norm behind each part of a layer, ``fuse-only`` one
kernel for both, and an overlapped schedule cuts the batch in two halves that take turns: while one
half's fused collective runs on a few multiprocessors (the stream of communication), the other
half's kernels run on the rest (the stream of compute). Who waits for whom is
:data:`meshc.analysis.cuda.stream_turns.TURNS`, which emitted programs follow as well
(TokenWeave, Figure 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE, TURNS
from meshc.cost.nodes.iteration_batches import Batch, cut, tokens_of
from meshc.cost.nodes.ranks import Half, Kernel, Kernels, Ranks
from meshc.cost.served_models import LayerShape

POLICIES = ("baseline", "fuse-only", "tokenweave")


class Span(NamedTuple):
    """A kernel on a stream: the layer, the half of the batch (0 or 1), seconds from the start of
    the iteration, and the multiprocessors that it may use."""

    stream: str
    name: str
    layer: int
    half: int
    start: float
    stop: float
    multiprocessors: int


@dataclass(frozen=True)
class Schedule:
    """An iteration of ``tokens`` rows; ``split`` counts those of the first half, None for a batch
    that is not cut."""

    tokens: int
    split: int | None
    spans: tuple[Span, ...]
    fixed_seconds: float

    @cached_property
    def seconds(self) -> float:
        """From the start to the end of the last kernel, and what an iteration takes beside."""
        return self.fixed_seconds + max(span.stop for span in self.spans)

    def busy(self, stream: str) -> float:
        """Seconds that ``stream`` runs kernels."""
        return sum(s.stop - s.start for s in self.spans if s.stream == stream)


def baseline(ranks: Ranks, batch: Batch, communicates: bool = True) -> Schedule:
    """Sums and norms one after the other; without sums, what a model without communication would
    take."""
    tokens = tokens_of(batch)
    norm = (ranks.norm(tokens),)
    behind = (ranks.all_reduce(tokens), *norm) if communicates else norm
    return _in_turn(ranks, batch, behind)


def fused_only(ranks: Ranks, batch: Batch) -> Schedule:
    """One kernel for each sum and norm, with as many blocks as it has alone."""
    return _in_turn(ranks, batch, (ranks.fused(tokens_of(batch), ranks.alone),))


def overlapped(
    ranks: Ranks,
    batch: Batch,
    at: int,
    blocks: int,
    layers: Sequence[LayerShape] | None = None,
) -> Schedule:
    """Two halves, of which the first has ``at`` tokens, each behind the other's communication; that
    has ``blocks`` multiprocessors. ``layers`` are those of the model, or some that stand behind
    each other."""
    halves = cut(batch, at)
    rest = ranks.multiprocessors - blocks
    layer_of = _remembered(lambda shape, which: ranks.layer(shape, halves[which], rest))
    collectives = [ranks.fused(tokens_of(half), blocks) for half in halves]
    slower = 1 + ranks.slowdown
    spans: list[Span] = []
    now = {COMPUTE: 0.0, COMMUNICATION: 0.0}
    recorded: dict[str, float] = {}

    def take_turns(layer: int, kernels: Sequence[Kernels]) -> None:
        """The next block, of ``layer``, of which each half has ``kernels``; none at the end. What
        is summed in front of it belongs to the block behind which it stands."""
        for stream, half, waits, records in TURNS:
            start = max(now[stream], recorded.get(waits, 0.0))
            if stream == COMMUNICATION and waits in recorded:
                stop = start + collectives[half].seconds
                name, owner = collectives[half].name, spans_of[half]
                spans.append(Span(stream, name, owner, half, start, stop, blocks))
            elif stream == COMPUTE:
                stop = start
                for kernel in kernels[half]:
                    start, stop = stop, stop + kernel.seconds * slower
                    spans.append(Span(stream, kernel.name, layer, half, start, stop, rest))
                spans_of[half] = layer
            else:
                continue
            now[stream] = recorded[records] = stop

    spans_of = [0, 0]
    for layer, shape in enumerate(ranks.model.layers if layers is None else layers):
        parts = [layer_of(shape, which) for which in (0, 1)]
        now[COMPUTE] += ranks.overlap_seconds
        take_turns(layer, [part.attention for part in parts])
        take_turns(layer, [part.feed_forward for part in parts])
    take_turns(0, [(), ()])
    return Schedule(tokens_of(batch), at, tuple(spans), ranks.iteration_seconds)


def _in_turn(ranks: Ranks, batch: Batch, behind: Kernels) -> Schedule:
    """All kernels one after the other; ``behind`` stands behind each part of a layer."""
    layer_of = _remembered(lambda shape, which: ranks.layer(shape, batch, ranks.multiprocessors))
    spans: list[Span] = []
    now = 0.0
    for layer, shape in enumerate(ranks.model.layers):
        whole = layer_of(shape, 0)
        for kernel in _with(behind, whole.attention, whole.feed_forward):
            stop = now + kernel.seconds
            spans.append(Span(COMPUTE, kernel.name, layer, 0, now, stop, ranks.multiprocessors))
            now = stop
    return Schedule(tokens_of(batch), None, tuple(spans), ranks.iteration_seconds)


def _with(behind: Kernels, *parts: Kernels) -> Iterable[Kernel]:
    for part in parts:
        yield from part
        yield from behind


def _remembered(cost: Callable[[LayerShape, int], Half]) -> Callable[[LayerShape, int], Half]:
    """``cost``, asked once for layers alike."""
    known: dict[tuple[LayerShape, int], Half] = {}

    def found(shape: LayerShape, which: int) -> Half:
        if (shape, which) not in known:
            known[shape, which] = cost(shape, which)
        return known[shape, which]

    return found
