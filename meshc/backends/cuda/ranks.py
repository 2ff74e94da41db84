"""Programs of one rank among several: which parts of the model's tensors a rank has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.program import DealtAxis, RankShare
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ranks import RankPart

Array = NDArray[Any]


def share_of(module: Module, transport: str) -> RankShare | None:
    """What the header of ``module`` says of its ranks; None for the graph of one GPU."""
    ranks = module.ranks
    if ranks is None:
        return None
    dealt = {}
    for param in module.function.params:
        parts = [ranks.part_of(dim) for dim in tensor_type(param.value).dims]
        axes = tuple(
            DealtAxis(axis, module.dims[p.whole], module.dims[p.dim], p.team, p.copies)
            for axis, p in enumerate(parts)
            if p is not None
        )
        if axes and param.role == "weight":
            dealt[param.value.name] = axes
    return RankShare(ranks.count, transport, dealt)


class RankTensors(Mapping[str, Array]):
    """The parts that ``rank`` has of the model's ``tensors``, each cut when it is asked for;
    padding is zero."""

    def __init__(self, share: RankShare, tensors: Mapping[str, Array], rank: int) -> None:
        self._share = share
        self._tensors = tensors
        self._rank = rank

    def __getitem__(self, name: str) -> Array:
        found = np.asarray(self._tensors[name])
        for dealt in self._share.dealt.get(name, ()):
            found = _part(found, dealt, self._rank)
        return found

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
    padding = [(0, 0)] * whole.ndim
    padding[dealt.axis] = 0, dealt.own - len(held)
    return np.pad(taken, padding) if len(held) < dealt.own else taken
