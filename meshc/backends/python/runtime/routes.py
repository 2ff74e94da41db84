"""Routes of channels: from whom each core hears, and which slices of memory a message joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from .cores import Cores, Fabric, Lanes, progression
from .percore import PerCore, grid_of


@dataclass(frozen=True)
class Hop:
    """Part of a route: cores where ``where`` holds send to the core at ``to``.

    ``to`` is (row, column) in the same region, or (region, row, column). A coordinate with a
    further axis (``core.every(n)``) sends to several cores at once. What leaves the mesh is void.
    """

    to: tuple[PerCore | int, ...]
    where: PerCore | bool = True


GridKey = tuple[slice, slice, slice]


class Batch:
    """What one send does for a set of senders: who receives, and from whom.

    ``origins`` are the senders, one for each receiver: not in order, and some several times.
    """

    def __init__(
        self, fabric: Fabric, senders: Cores, sources: Lanes, targets: Lanes, hops: Lanes
    ) -> None:
        self.fabric, self.senders = fabric, senders
        self.origins, self._hops = Cores(fabric, sources), hops
        self.receivers = fabric.of_lanes(targets)
        self._within: dict[Cores, Batch] = {}

    @cached_property
    def parts(self) -> tuple[tuple[GridKey, GridKey], ...] | None:
        """All pairs as (receivers, senders) on the axes (regions, rows, columns), the latter
        broadcast to the former; None where the route has no such form."""
        return _parts(self.fabric, self.origins.lanes, self.receivers.lanes, self._hops)

    @cached_property
    def apart(self) -> bool:
        """Whether no sender receives."""
        return not np.isin(self.receivers.lanes, self.origins.lanes).any()

    def within(self, cores: Cores) -> Batch:
        """The same for some of the receivers."""
        found = self._within.get(cores)
        if found is None:
            some = self.receivers.numbers(cores)
            of_these = (self.origins.lanes[some], cores.lanes, self._hops[some])
            found = self._within[cores] = Batch(self.fabric, self.senders, *of_these)
        return found


class Route:
    """The pairs of sender and receiver of a channel, from its hops."""

    def __init__(self, fabric: Fabric, hops: Sequence[Hop]) -> None:
        self.fabric = fabric
        self._from, self._to, self._hop = _joined([_pairs(fabric, hop) for hop in hops])
        self.reached = fabric.of_lanes(np.unique(self._to))

    def mute(self, senders: Cores) -> Cores:
        """The cores in ``senders`` from which the route leads nowhere."""
        return self.fabric.of_lanes(np.setdiff1d(senders.lanes, self._from))

    def batches(self, senders: Cores) -> tuple[Batch, ...]:
        """Receivers of ``senders``; a core that hears several of them does so one by one."""
        heard = np.isin(self._from, senders.lanes)
        sources, targets, hops = self._from[heard], self._to[heard], self._hop[heard]
        batches = []
        while len(targets):
            lanes, first = np.unique(targets, return_index=True)
            batches.append(Batch(self.fabric, senders, sources[first], lanes, hops[first]))
            rest = np.setdiff1d(np.arange(len(targets)), first)
            sources, targets, hops = sources[rest], targets[rest], hops[rest]
        return tuple(batches)


def _pairs(fabric: Fabric, hop: Hop) -> tuple[Lanes, Lanes]:
    """Lanes of the senders and receivers of one hop."""
    mesh = fabric.mesh
    outer = PerCore(np.arange(mesh.grid[0]).reshape(-1, 1, 1))
    to = hop.to if len(hop.to) == 3 else (outer, *hop.to)
    grids = [grid_of(part) for part in (hop.where, *to)]
    rank = max(grid.ndim for grid in grids)
    grids = [grid.reshape(grid.shape + (1,) * (rank - grid.ndim)) for grid in grids]
    extents = np.broadcast_shapes(mesh.grid + (1,) * (rank - 3), *[g.shape for g in grids])
    held, *places = (np.broadcast_to(grid, extents) for grid in grids)
    for place, size in zip(places, mesh.grid, strict=True):
        held = held & (place >= 0) & (place < size)
    where = np.nonzero(held)
    source = np.ravel_multi_index(where[:3], mesh.grid)
    target = np.ravel_multi_index([place[where] for place in places], mesh.grid)
    return fabric.lane_of_core[source], fabric.lane_of_core[target]


def _joined(routes: Sequence[tuple[Lanes, Lanes]]) -> tuple[Lanes, Lanes, Lanes]:
    """Distinct pairs of sender and receiver, by sender, and the first hop that has them."""
    rows = [np.stack([*pair, np.full(len(pair[0]), n)], 1) for n, pair in enumerate(routes)]
    every = np.concatenate(rows) if rows else np.empty((0, 3), np.intp)
    _, first = np.unique(every[:, :2], axis=0, return_index=True)
    found = every[first]
    return found[:, 0], found[:, 1], found[:, 2]


def _parts(
    fabric: Fabric, sources: Lanes, targets: Lanes, hops: Lanes
) -> tuple[tuple[GridKey, GridKey], ...] | None:
    """The pairs of each hop as slices of the core axes, if all of them have that form."""
    sender = np.zeros(fabric.mesh.count, np.intp)
    sender[targets] = sources
    on_grid = sender.reshape(fabric.mesh.grid)
    found = []
    for hop in np.unique(hops):
        for receivers in _products(fabric, targets[hops == hop]):
            senders = _broadcast(fabric, on_grid[receivers])
            if senders is None:
                return None
            found.append((receivers, senders))
    reached = sum(on_grid[receivers].size for receivers, _ in found)
    return tuple(found) if reached == len(targets) else None


def _products(fabric: Fabric, lanes: Lanes) -> list[GridKey]:
    """Slices of the core axes that make up ``lanes``; none where these are no product of rows and
    columns."""
    if not fabric.natural:
        return []
    places = [np.unique(axis) for axis in np.unravel_index(lanes, fabric.mesh.grid)]
    if len(lanes) != np.prod([len(axis) for axis in places]):
        return []
    return [(r, y, x) for r, y, x in product(*map(_progressions, places))]


def _progressions(values: Lanes) -> list[slice]:
    """Slices that count ``values`` off, each as long as its step stays the same."""
    found = []
    while len(values):
        steps = np.diff(values)
        other = np.flatnonzero(steps != steps[:1])
        count = int(other[0]) + 1 if len(other) else len(values)
        run = progression(values[:count])
        assert run is not None
        found.append(run)
        values = values[count:]
    return found


def _broadcast(fabric: Fabric, sources: Lanes) -> GridKey | None:
    """Slices of the senders that broadcast to ``sources``, one for each receiver on the three
    axes of cores, if there are such."""
    places = np.stack(np.unravel_index(sources, fabric.mesh.grid))
    slices = []
    for axis in range(3):
        along = np.moveaxis(places[axis], axis, 0).reshape(sources.shape[axis], -1)
        steps = np.unique(np.diff(along[:, 0]))
        if (along != along[:, :1]).any() or len(steps) > 1 or (steps < 0).any():
            return None
        step = int(steps[0]) if len(steps) else 0
        slices.append(slice(int(along[0, 0]), int(along[-1, 0]) + 1, step or 1))
    return slices[0], slices[1], slices[2]
