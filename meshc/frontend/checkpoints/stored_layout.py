"""How a stored tensor holds a param: the dims of its axes, spelled as in ``tensors.toml``.

``["H (N | P)", "E"]`` is a matrix whose rows are heads H, and in each head the lanes N and then the
lanes P; a param ``[E, H, N]`` of it is the first lanes of each head, transposed. In ``F (1 | 1)``
single lanes of two params take turns. In ``G (H/G | 1 | 1) D`` heads H lie in groups of H/G, one
behind each of G.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshc.frontend.checkpoints.tensor_source import Part

_FACTOR = re.compile(r"\(([^()]*)\)|([\w/]+)")


@dataclass(frozen=True)
class Factor:
    """A factor of a stored axis: ``extent`` places, of which those from ``start`` on are the
    param's, along ``dims``."""

    dims: tuple[str, ...]
    extent: int
    start: int


@dataclass(frozen=True)
class Stretch:
    """The first ``lanes`` of the dim ``dim`` are ``factor`` times what the file holds."""

    dim: str
    lanes: int
    factor: float

    def factors(self, extents: Mapping[str, int]) -> np.ndarray:
        """What each place along the dim is multiplied by, float32."""
        stretched = np.arange(extents[self.dim]) < self.lanes
        return np.where(stretched, np.float32(self.factor), np.float32(1.0))


@dataclass(frozen=True)
class StoredLayout:
    """The factors of each stored axis, the outermost first, and what the param makes of them:
    ``dims`` in its own order with their ``extents``. ``pairs`` is the dim whose lanes the file
    holds in pairs, or empty. Elements of the param are ``offset`` more than those of the file, and
    some may be larger by a ``stretch``."""

    axes: tuple[tuple[Factor, ...], ...]
    dims: tuple[str, ...]
    extents: Mapping[str, int]
    pairs: str = ""
    offset: float = 0.0
    stretch: Stretch | None = None

    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        return tuple(math.prod(factor.extent for factor in axis) for axis in self.axes)

    def shape(self) -> tuple[int, ...]:
        """The shape of the param."""
        return tuple(self.extents[dim] for dim in self.dims)

    def read(self, stored: np.ndarray) -> np.ndarray:
        """The param, C-contiguous, from ``stored`` of ``stored_shape``."""
        found = np.ascontiguousarray(self.view(stored))
        if self.stretch:
            behind = [1] * (len(self.dims) - 1 - self.dims.index(self.stretch.dim))
            found = found * self.stretch.factors(self.extents).reshape(-1, *behind)
        return found + np.float32(self.offset) if self.offset else found

    def view(self, stored: np.ndarray) -> np.ndarray:
        """The param but for ``stretch`` and ``offset``, from ``stored`` of ``stored_shape``, of
        which there may be several along leading axes; not copied where its elements lie evenly."""
        lead = stored.shape[: stored.ndim - len(self.axes)]
        factors = [factor for axis in self.axes for factor in axis]
        counts = [math.prod(self.extents[dim] for dim in factor.dims) for factor in factors]
        whole = stored.reshape(*lead, *(factor.extent for factor in factors))
        taken_of = (slice(f.start, f.start + n) for f, n in zip(factors, counts, strict=True))
        own = whole[(slice(None),) * len(lead) + tuple(taken_of)]
        taken = [dim for factor in factors for dim in factor.dims]
        split = own.reshape(*lead, *(self.extents[dim] for dim in taken))
        if self.pairs:
            split = pairs_to_halves(split, len(lead) + taken.index(self.pairs))
        order = (len(lead) + taken.index(dim) for dim in _parts(self.dims, taken))
        turned = split.transpose(*range(len(lead)), *order)
        return turned.reshape(*lead, *self.shape())

    def slab(self, start: int, stop: int) -> tuple[Part, StoredLayout] | None:
        """What holds the indices from ``start`` to ``stop`` of the param's first dim: a part of the
        stored tensor, and the layout of that; None where they do not lie in one."""
        dim, ends = self.dims[0], (0, len(self.axes) - 1)
        found = [
            axis
            for axis, factors in enumerate(self.axes)
            if axis in ends and factors[0].dims[:1] == (dim,)
        ]
        if not found or self.pairs == dim or (self.stretch and self.stretch.dim == dim):
            return None
        (axis,) = found
        outer, *others = self.axes[axis]
        behind = math.prod(factor.extent for factor in others)
        inner = math.prod(self.extents[each] for each in outer.dims[1:])
        first, last = ((outer.start + at * inner) * behind for at in (start, stop))
        own = (replace(outer, extent=(stop - start) * inner, start=0), *others)
        axes = (*self.axes[:axis], own, *self.axes[axis + 1 :])
        extents = {**self.extents, dim: stop - start}
        return Part(axis, first, last), replace(self, axes=axes, extents=extents)

    def by_groups(self, group: int, along: int = -1) -> StoredLayout | None:
        """The layout of something that there is once for ``group`` elements of a stored row, or
        ``along`` another axis, of a param that has as many fewer of its dim there, or of the two
        dims that such a group covers; None where the axis holds something else."""
        factor = self.axes[along][-1]
        if not factor.dims or len(self.axes) < 2 or self.offset or self.stretch:
            return None
        inner = self.extents[factor.dims[-1]]
        if group > inner and group % inner == 0 and len(self.axes[along]) > 1:
            axes = [*self.axes]
            axes[along] = axes[along][:-1]
            outer = replace(self, axes=tuple(axes)).by_groups(group // inner, along)
            if outer is None or factor.dims[-1] == self.pairs or factor.extent != inner:
                return None
            axes = [*outer.axes]
            axes[along] = (*axes[along], replace(factor, extent=1))
            return replace(outer, axes=tuple(axes), extents={**outer.extents, factor.dims[-1]: 1})
        dim = factor.dims[-1]
        whole = factor.extent == math.prod(self.extents[each] for each in factor.dims)
        if not whole or dim == self.pairs or self.extents[dim] % group:
            return None
        axes = [*self.axes]
        axes[along] = (*axes[along][:-1], replace(factor, extent=factor.extent // group))
        extents = {**self.extents, dim: self.extents[dim] // group}
        return replace(self, axes=tuple(axes), extents=extents)


def pairs_to_halves(array: np.ndarray, axis: int) -> np.ndarray:
    """Lanes along ``axis`` from 2i, 2i + 1 to i, i + n/2, which undoes ``permute`` in llama.cpp's
    ``convert_hf_to_gguf.py``."""
    before, lanes, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    pairs = array.reshape(*before, lanes // 2, 2, *after)
    return pairs.swapaxes(axis, axis + 1).reshape(array.shape)


def stored_layout(
    axes: Sequence[str],
    dims: tuple[str, ...],
    extents: Mapping[str, int],
    part: int | None = None,
    pairs: str = "",
    offset: float = 0.0,
) -> StoredLayout:
    """The layout that the texts ``axes`` spell of a param of ``dims``.

    ``part`` says which alternative is the param's where its dims do not. Raises ValueError where
    the texts do not hold each dim once.
    """
    spelled = [_alternatives(axis) for axis in axes]
    named = {name for axis in spelled for factor in axis for names in factor for name in names}
    for name in named:
        if "/" in name:
            whole, groups = (extents[dim] for dim in name.split("/"))
            extents = {**extents, name: whole // groups}
    parts = _parts(dims, named)
    found = tuple(tuple(_factor(text, parts, extents, part) for text in axis) for axis in spelled)
    taken = [dim for axis in found for factor in axis for dim in factor.dims]
    if sorted(taken) != sorted(parts):
        raise ValueError(f"{list(axes)} stores {taken}, not {list(dims)}")
    return StoredLayout(found, dims, extents, pairs, offset)


def _parts(dims: tuple[str, ...], named: Collection[str]) -> tuple[str, ...]:
    """``dims``, with ``G`` and ``H/G`` in the place of an ``H`` whose groups are ``named``."""
    found: list[str] = []
    for dim in dims:
        groups = next((name for name in named if name.startswith(f"{dim}/")), None)
        found += [groups.split("/")[1], groups] if groups else [dim]
    return tuple(found)


def _alternatives(axis: str) -> list[list[list[str]]]:
    """The factors of an axis, each a list of alternatives, each a list of dims."""
    return [
        [[d for d in alternative.split() if d != "1"] for alternative in (group or dim).split("|")]
        for group, dim in _FACTOR.findall(axis)
    ]


def _factor(
    alternatives: list[list[str]],
    dims: tuple[str, ...],
    extents: Mapping[str, int],
    part: int | None,
) -> Factor:
    counts = [math.prod(extents[dim] for dim in names) for names in alternatives]
    fitting = [i for i, names in enumerate(alternatives) if set(names) <= set(dims)]
    if len(alternatives) > 1 and part is not None:
        fitting = [part]
    if len(fitting) != 1:
        raise ValueError(f"{len(fitting)} of {alternatives} have dims of {list(dims)}")
    (own,) = fitting
    return Factor(tuple(alternatives[own]), sum(counts), sum(counts[:own]))
