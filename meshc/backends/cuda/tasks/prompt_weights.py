"""Weights and caches that kernels of prompts have packed already: tasks read them as they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.program import Buffer, Gathered, Weight

_ROWS, _COLUMNS = ("i0", "i1"), ("i1", "i0")


@dataclass(frozen=True)
class Place:
    """Where in the matrix ``name`` the row groups of a weight lie: of ``own`` after ``own`` of them
    each run begins ``every`` groups behind the one before, the first at ``first``; 0 are all of
    them."""

    name: str
    own: int = 0
    every: int = 0
    first: int = 0


@dataclass(frozen=True)
class Known:
    """The ``weights`` of kernels, and the names of the buffers of ``caches`` of the model, which
    are those of so many ``requests``, or of as many as tokens are read for 0."""

    weights: Mapping[str, Weight] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    caches: Mapping[str, str] = field(default_factory=dict)
    requests: int = 0

    def vector(self, source: str, gathered: Gathered, layers: int) -> str | None:
        """The weight that is ``source``, lane by lane."""
        for name, weight in self.weights.items():
            alike = weight.pack == "plain" and weight.shape == gathered.extents
            if alike and weight.sources == (source,) and weight.layers == layers:
                return name if gathered.element == ("i0",) else None
        return None

    def matrix(
        self, sources: Sequence[str], gathered: Sequence[Gathered], rows: int, layers: int
    ) -> Place | None:
        """Where the row groups of ``sources`` lie, ``rows`` rows of each in a group."""
        for name, weight in self.weights.items():
            if weight.fragments and weight.layers == layers and {*sources} <= {*weight.sources}:
                found = _place(name, weight, sources, gathered, rows)
                if found is not None:
                    return found
        return None

    def cache(self, source: str, shape: tuple[int, ...]) -> str | None:
        """The buffer of the cache ``source`` of this shape."""
        name = self.caches.get(source)
        return name if name is not None and self.buffers[name].shape == shape else None


def _place(
    name: str, weight: Weight, sources: Sequence[str], gathered: Sequence[Gathered], rows: int
) -> Place | None:
    elements = {g.element for g in gathered}
    if weight.pack in ("plain", "transposed"):
        wanted = _ROWS if weight.pack == "plain" else _COLUMNS
        alone = len(sources) == 1 and rows == FRAGMENT
        return Place(name) if alone and elements == {wanted} else None
    if weight.pack == "gated":
        both = tuple(sources) == weight.sources and rows == FRAGMENT // 2
        return Place(name) if both and elements == {_COLUMNS} else None
    if rows != FRAGMENT or len(sources) > 1:
        return None
    if weight.pack == "projections":
        return _projection(name, weight, sources[0], gathered[0].extents[0])
    if weight.pack == "output":
        return Place(name)
    return None


def _projection(name: str, weight: Weight, source: str, rows: int) -> Place | None:
    """Rows of queries, keys and values of a key head lie one behind the other."""
    heads = weight.shape[0]
    groups = [_rows(shape) // heads for shape in weight.source_shapes]
    place = weight.sources.index(source)
    if any(count % FRAGMENT for count in groups) or rows != groups[place] * heads:
        return None
    own = [count // FRAGMENT for count in groups]
    if sum(own) != weight.shape[1]:
        return None
    return Place(name, own[place], sum(own), sum(own[:place]))


def _rows(shape: Sequence[int]) -> int:
    """Heads times lanes of a projection ``[(layers,) hidden, heads, lanes]``."""
    return shape[-1] * shape[-2]
