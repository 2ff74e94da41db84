"""Iterations of a serving system, kernel by kernel, with the collectives of TokenWeave.

Tokens of prompts and of requests that decode are one batch, those that decode first. By
``tokenweave`` a batch is cut in two where that pays; the place is looked up by the numbers of both
kinds of tokens, as a server looks it up that has measured it beforehand, and not searched in each
iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from meshc.cost.nodes.iteration_batches import Batch, Chunk, tokens_of
from meshc.cost.nodes.iteration_batches import cut as halves
from meshc.cost.nodes.overlap import POLICIES, overlapped
from meshc.cost.nodes.ranks import Kernel, Kernels, Ranks
from meshc.cost.nodes.splitting import boundaries_tried
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.serving_costs import Chunk as Tokens
from meshc.cost.serving_costs import Part, ServingCosts
from meshc.devices import Device
from meshc.support.diagnostics import fail

_NEAR = 64
"""Batches whose numbers of tokens have the same quotient by this are cut at the same place."""
_CONTEXT = 1024
"""Tokens that a request has which decodes, where a place is looked for."""


class _Cut(NamedTuple):
    """The tokens of the first half, and the multiprocessors of collectives."""

    at: int
    blocks: int


class NodeIterations(ServingCosts):
    """Costs of iterations with ``collectives``, one of ``POLICIES``. Without ``in_switch`` GPUs add
    up what they load from their peers.

    Errors: those of :class:`ServingCosts` and of :class:`Ranks`.
    """

    def __init__(
        self,
        model: ServedModel,
        device: Device,
        gpus: int,
        collectives: str,
        in_switch: bool = True,
    ) -> None:
        super().__init__(model, device, gpus)
        if collectives not in POLICIES:
            fail("bad-argument", f"'{collectives}' are no collectives of {', '.join(POLICIES)}")
        self._collectives = collectives
        self._ranks = Ranks(model, device, gpus, in_switch)
        self._cuts: dict[tuple[LayerShape, int, int], _Cut | None] = {}

    def transfer_seconds(self, size: float) -> float:
        rate = self.gpus * self._ranks.link_bytes_per_second
        return self._ranks.start_seconds + size / rate

    def _beside(self, heads: int) -> Part:
        fixed = self._ranks.iteration_seconds
        if not heads:
            return Part(fixed, 0.0, 0.0, 0.0)
        return self._part((self._ranks.head(heads),), 0.0, fixed)

    def _layer(
        self, layer: LayerShape, decodes: int, context: int, chunks: Sequence[Tokens]
    ) -> Part:
        ranks, batch = self._ranks, _batch(decodes, context, chunks)
        tokens = tokens_of(batch)
        loaded = ranks.expert_bytes(layer, batch) * self.gpus
        whole = ranks.layer(layer, batch, ranks.multiprocessors)
        behind: Kernels = (ranks.fused(tokens, ranks.alone),)
        if self._collectives == "baseline":
            behind = (ranks.all_reduce(tokens), ranks.norm(tokens))
        part = self._part((*whole.attention, *whole.feed_forward, *behind, *behind), loaded)
        if self._collectives != "tokenweave":
            return part
        cut = self._cut(layer, decodes, tokens - decodes)
        if cut is None:
            return part
        again = sum(ranks.expert_bytes(layer, half) for half in halves(batch, cut.at))
        return part._replace(
            seconds=_period(ranks, layer, batch, cut),
            expert_bytes=again * self.gpus,
            bytes=part.bytes - loaded + again * self.gpus,
        )

    def _part(self, kernels: Sequence[Kernel], loaded: float, fixed: float = 0.0) -> Part:
        """What ``kernels`` take that run one behind the other on each GPU."""
        return Part(
            fixed + sum(kernel.seconds for kernel in kernels),
            loaded,
            self.gpus * sum(kernel.bytes for kernel in kernels),
            self.gpus * sum(kernel.flops for kernel in kernels),
        )

    def _cut(self, layer: LayerShape, decodes: int, prompts: int) -> _Cut | None:
        """Where a layer's batch of so many tokens is cut; None where it stays whole."""
        key = (layer, decodes // _NEAR, prompts // _NEAR)
        if key not in self._cuts:
            few, many = (number * _NEAR for number in key[1:])
            batch = _batch(few, few * _CONTEXT, [(0, many)] if many else [])
            self._cuts[key] = _best_cut(self._ranks, layer, batch)
        return self._cuts[key]


def _batch(decodes: int, context: int, chunks: Sequence[Tokens]) -> Batch:
    mean = context // decodes if decodes else 0
    return (*repeat(Chunk(max(mean - 1, 0), max(mean, 1)), decodes), *(Chunk(*c) for c in chunks))


def _best_cut(ranks: Ranks, layer: LayerShape, batch: Batch) -> _Cut | None:
    """The cut by which a layer takes least, if that is less than the fused collective takes."""
    tokens = tokens_of(batch)
    if not tokens:
        return None
    whole = ranks.layer(layer, batch, ranks.multiprocessors).seconds
    best, least = None, whole + 2 * ranks.fused(tokens, ranks.alone).seconds
    for blocks in range(2, ranks.blocks + 1, 2):
        for at in boundaries_tried(ranks, tokens, blocks, layer):
            seconds = _period(ranks, layer, batch, _Cut(at, blocks))
            if seconds < least:
                best, least = _Cut(at, blocks), seconds
    return best


def _period(ranks: Ranks, layer: LayerShape, batch: Batch, cut: _Cut) -> float:
    """Seconds by which one layer more makes a schedule longer, behind some layers alike."""
    two, three = (
        overlapped(ranks, batch, cut.at, cut.blocks, [layer] * count).seconds for count in (2, 3)
    )
    return three - two
