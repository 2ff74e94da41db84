"""Programs of one rank among several: which parts of the model's tensors a rank has."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.gpu_shares import DealtAxis, RankShare
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ranks import RankPart
from meshc.ir.stored import Layered, Layers, Scaled, StoredWeights, stored

Array = NDArray[Any]


def share_of(
    graph: Module, tasks: Sequence[Module], sources: Container[str], transport: str
) -> RankShare | None:
    """What the headers of ``tasks``, of a step and of what reads prompts, say of the ranks that run
    them: which parts they have of the ``sources``, weights of ``graph`` or what these stay
    quantised as, each perhaps in some of the programs; None for those of one GPU."""
    ranks, dims = tasks[0].ranks, tasks[0].dims
    if ranks is None:
        return None
    ports = (port for one in tasks for port in one.ports if port.direction == "in")
    tensors = {port.name: port.tensor for port in ports}
    for param in graph.function.params:
        if param.role == "weight":
            tensors[param.value.name] = tensor_type(param.value)
    dealt = {}
    for name, tensor in tensors.items():
        parts = [ranks.part_of(dim) for dim in tensor.dims]
        axes = tuple(
            DealtAxis(axis, dims[p.whole], dims[p.dim], p.team, p.copies)
            for axis, p in enumerate(parts)
            if p is not None
        )
        if axes and name in sources:
            dealt[name] = axes
    return RankShare(ranks.count, transport, dealt)


class RankTensors(Mapping[str, Array]):
    """The parts that ``rank`` has of the model's ``tensors``, each cut when it is asked for;
    padding is zero."""

    def __init__(self, share: RankShare, tensors: Mapping[str, Array], rank: int) -> None:
        self._share = share
        self._tensors = tensors
        self._rank = rank

    def __getitem__(self, name: str) -> Array:
        return self._cut(name, np.asarray(self._tensors[name]))

    def stored(self, name: str) -> Layered | Scaled:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        whole = stored(self._tensors, name)
        if isinstance(whole, np.ndarray | Scaled):
            return self._held(name, whole)
        shape = self._cut(name, np.broadcast_to(np.zeros(()), whole.shape)).shape
        return Layers(shape, lambda layer: self._held(name, whole[layer], of_layer=True))

    def stamp(self) -> str | None:
        """See :class:`meshc.ir.stored.StoredWeights`."""
        given = self._tensors
        whole = given.stamp() if isinstance(given, StoredWeights) else None
        return whole and repr((whole, self._share, self._rank))

    def _held(self, name: str, whole: Array | Scaled, of_layer: bool = False) -> Array | Scaled:
        if isinstance(whole, Scaled):
            return whole.then(lambda tensor: self._cut(name, tensor, of_layer))
        return self._cut(name, whole, of_layer)

    def _cut(self, name: str, whole: Array, of_layer: bool = False) -> Array:
        for dealt in self._share.dealt.get(name, ()):
            axis = replace(dealt, axis=dealt.axis - of_layer)
            whole = _part(whole, axis, self._rank)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _part(whole: Array, dealt: DealtAxis, rank: int) -> Array:
    """The elements of ``rank`` along an axis: those that there are lie side by side, and padding
    behind them. A tensor of another length is left to whoever compares shapes."""
    if whole.ndim <= dealt.axis or whole.shape[dealt.axis] != dealt.whole:
        return whole
    part = RankPart("own", "whole", dealt.team, dealt.copies)
    places = part.elements(rank, {"own": dealt.own, "whole": dealt.whole})
    held = [place for place in places if place is not None]
    first = held[0] if held else 0
    taken = whole[(slice(None),) * dealt.axis + (slice(first, first + len(held)),)]
    if len(held) == dealt.own:
        return taken
    padded = np.zeros(
        (*whole.shape[: dealt.axis], dealt.own, *whole.shape[dealt.axis + 1 :]), whole.dtype
    )
    padded[(slice(None),) * dealt.axis + (slice(len(held)),)] = taken
    return padded
