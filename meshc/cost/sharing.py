"""Which channels reductions share, within the queues and colors of a core.

Every reduction may take another algorithm, as long as the channels of all of them fit together
with those that the rest of the program takes. What is shared is a ``Track``: chains of one stride
serve trees of any groups that have this stride, so a second algorithm on an axis is often free.

A *set* of tracks decides what each reduction costs: as much as the cheapest algorithm that runs on
it. So for one set costs add up, and the best choice for a program is the cheapest over all sets
that fit. Only the largest count, as nothing becomes dearer on more tracks. They depend on the mesh
and the device alone (``track_sets``), so a search over programs can keep what each costs by every
set and is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.traffic.tracks import (
    Track,
    Tracks,
    colors_of,
    ring_track,
    room_of,
    tree_size,
    tree_tracks,
)
from meshc.cost.reductions import Reduction, folded_cost, reduce_cost, ring_cost, tree_cost
from meshc.cost.routing_demand import Demand, Reduced
from meshc.cost.terms import NOTHING, Cost
from meshc.cost.track_sets import Algorithms, largest_sets
from meshc.devices import Device
from meshc.ir.mesh import Mesh
from meshc.ir.ops.mesh import FOLDED

Totals = NDArray[np.float64]


@dataclass(frozen=True)
class Option:
    """An algorithm for a reduction and the tracks it runs on."""

    way: Reduction
    tracks: Tracks


@dataclass(frozen=True)
class Choice:
    """The algorithm of each reduction of a program; ``cost`` is that of all of them together.
    ``inputs`` and ``colors`` are what their tracks and all others take of a core."""

    ways: Mapping[Reduced, Reduction]
    cost: Cost
    inputs: int
    colors: int


@dataclass(frozen=True)
class Sharing:
    """Choices among ``algorithms`` for the reductions of programs on a mesh of ``device``, that
    take at most ``inputs`` queues and ``colors`` of a core (None: any number)."""

    mesh: Mesh
    device: Device
    algorithms: Algorithms
    inputs: int | None
    colors: int | None
    _rows: dict[Reduced | Track, Totals] = field(default_factory=dict, compare=False, repr=False)

    def beside(self, tracks: Iterable[Track]) -> Sharing:
        """These choices where ``tracks`` along lines of their own, which every core receives on,
        take a part of the queues and colors."""
        more = list(tracks)
        colors = sum(colors_of(self.mesh, track) for track in more)
        return replace(
            self,
            inputs=None if self.inputs is None else self.inputs - len(more),
            colors=None if self.colors is None else self.colors - colors,
            _rows={},
        )

    @cached_property
    def sets(self) -> tuple[Tracks, ...]:
        """The largest sets of tracks that fit, which are those of an axis in any order."""
        natural = self.mesh.with_interleaved(())
        return largest_sets(natural, self.algorithms, self.inputs, self.colors)

    def totals(self, demand: Demand) -> Totals:
        """Cycles of all reductions on each set; infinite where a set does not do."""
        found = np.zeros(len(self.sets))
        for reduced, count in demand.reductions.items():
            found = found + self.row(reduced) * count
        for track in demand.tracks:
            found = found + self.row(track)
        return found

    def row(self, what: Reduced | Track) -> Totals:
        """Cycles of one reduction on each set; of a track that is needed 0, or infinite."""
        known = self._rows.get(what)
        if known is None:
            if isinstance(what, Track):
                each = [0.0 if what in tracks else np.inf for tracks in self.sets]
            else:
                options = sorted(self.options(what), key=lambda option: option.way.cycles)
                each = [
                    next((o.way.cycles for o in options if o.tracks <= tracks), np.inf)
                    for tracks in self.sets
                ]
            known = self._rows[what] = np.array(each)
        return known

    def options(self, reduced: Reduced) -> list[Option]:
        """All ways to reduce, whatever they take: trees by their phases, then the ring."""
        mesh, axis = self.mesh, reduced.axis
        if mesh.size(axis) == 1:
            return [Option(self.way(reduced, "k_tree", ()), frozenset())]
        dealt = reduced.everywhere and reduced.part > 0
        found = [
            Option(
                self.way(reduced, "k_tree", groups),
                tree_tracks(mesh, axis, groups, reduced.everywhere),
            )
            for groups in self.algorithms.trees(mesh, axis, dealt)
            if self.algorithms.flat(mesh, axis) or not reduced.everywhere
        ]
        if reduced.everywhere and self.algorithms.folded(mesh, axis):
            found += [
                Option(
                    self.way(reduced, algo, groups),
                    tree_tracks(mesh, axis, groups, True, True, algo == "segmented"),
                )
                for algo in self.algorithms.folds(mesh, axis)
                for groups in self.algorithms.folded_trees(mesh, axis)
            ]
        if dealt and self.algorithms.ring:
            tracks = frozenset({ring_track(mesh, axis)})
            found.append(Option(self.way(reduced, "ring", ()), tracks))
        return found

    def way(self, reduced: Reduced, algo: str, groups: tuple[int, ...]) -> Reduction:
        """``reduced`` by the algorithm ``algo``: ``k_tree``, ``folded`` or ``segmented`` of
        ``groups``, or ``ring``."""
        size, device = self.mesh.size(reduced.axis), self.device.along(reduced.axis)
        if size == 1:
            return Reduction("k_tree", (), NOTHING)
        if algo == "ring":
            hops = 1 if self.device.closes(reduced.axis, size) else 2
            ring = ring_cost(size, reduced.part, device, reduced.dealing, hops)
            return Reduction("ring", (), ring)
        if algo in FOLDED:
            reach = tree_size(self.mesh, reduced.axis, True)
            segment = self.mesh.size(self.mesh.inner) if algo == "segmented" else 0
            folded = folded_cost(
                groups, reach, reach < size, reduced.words, device, reduced.work, segment
            )
            return Reduction(algo, groups, folded)
        cost = tree_cost if reduced.everywhere else _rooted_cost
        return Reduction("k_tree", groups, cost(groups, size, reduced.words, device, reduced.work))

    def cheapest(self, demand: Demand) -> Choice | None:
        """The choice with the fewest cycles, then the fewest queues and colors; None where nothing
        fits."""
        totals = self.totals(demand)
        if not np.isfinite(totals).any():
            return None
        best = [s for s, cycles in zip(self.sets, totals, strict=True) if cycles == totals.min()]
        return min((self.choice(s, demand) for s in best), key=lambda c: (c.inputs, c.colors))

    def choice(self, tracks: Tracks, demand: Demand) -> Choice:
        """The cheapest way of each reduction on ``tracks``."""
        taken = {
            reduced: min(
                (o for o in self.options(reduced) if o.tracks <= tracks),
                key=lambda option: option.way.cycles,
            )
            for reduced in demand.reductions
        }
        used = demand.tracks.union(*(option.tracks for option in taken.values()))
        costs = (taken[r].way.cost * count for r, count in demand.reductions.items())
        ways = {reduced: option.way for reduced, option in taken.items()}
        return Choice(ways, sum(costs, NOTHING), *room_of(self.mesh, used))


def _rooted_cost(
    groups: tuple[int, ...], size: int, words: int, device: Device, work: Cost | None
) -> Cost:
    """A tree whose sum stays on the first core."""
    return reduce_cost(groups, words, device, work, size)
