"""Schedules of an iteration on a GPU of a node, as data: kernels on two streams.

``baseline`` runs a sum over all GPUs and a norm behind each part of a layer, ``fuse-only`` one
kernel for both, and an overlapped schedule cuts the batch in two halves that take turns: while one
half's fused collective runs on a few multiprocessors (the stream of communication), the other
half's kernels run on the rest (the stream of compute). A collective waits for its half's kernels
and a half's next kernels wait for its collective: events between the streams (TokenWeave, Figure
7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshc.cost.nodes.batches import Batch, cut, tokens_of
from meshc.cost.nodes.ranks import Half, Kernel, Kernels, Ranks
from meshc.cost.served_models import LayerShape

COMPUTE, COMMUNICATION = "compute", "communication"
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
    """One kernel for each sum and norm, with as many blocks as it is fastest with."""
    return _in_turn(ranks, batch, (ranks.fused(tokens_of(batch), 2 * ranks.blocks),))


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
    compute = link = 0.0
    ready = [0.0, 0.0]
    for layer, shape in enumerate(ranks.model.layers if layers is None else layers):
        parts = [layer_of(shape, which) for which in (0, 1)]
        compute += ranks.overlap_seconds
        for kernels in ([p.attention for p in parts], [p.feed_forward for p in parts]):
            for which in (0, 1):
                compute = max(compute, ready[which])
                for kernel in kernels[which]:
                    stop = compute + kernel.seconds * slower
                    spans.append(Span(COMPUTE, kernel.name, layer, which, compute, stop, rest))
                    compute = stop
                behind, start = collectives[which], max(link, compute)
                link = ready[which] = start + behind.seconds
                spans.append(Span(COMMUNICATION, behind.name, layer, which, start, link, blocks))
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
