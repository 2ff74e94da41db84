"""The largest sets of tracks that fit a device: all that reductions of a mesh may have at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf

from meshc.analysis.traffic.tracks import (
    Tracks,
    cast_track,
    folds,
    heard_along,
    in_segments,
    own_axis,
    ring_track,
    room_of,
    tree_size,
    tree_tracks,
)
from meshc.cost.reductions import LEAST_FOLDED, TREES, tree_candidates
from meshc.ir.mesh import Mesh
from meshc.ir.ops.mesh import FOLDED


@dataclass(frozen=True)
class Algorithms:
    """Which algorithms reductions may take: those of ``select-collective{algo=..,k=..}``.

    ``fold`` also tries trees that go to the middle of a line of some length; ``algo=folded`` takes
    no others where there can be such. With ``segmented`` the sums of these may come back by way of
    the first cores of segments, and sums inside segments share chains with those of whole lines.
    ``rooted`` says that some results are wanted on first cores alone, so that chains may be of use
    without a multicast, and the other way round.
    """

    algo: str = "auto"
    k: int = 0
    rooted: bool = False
    fold: bool = True
    segmented: bool = True

    @property
    def ring(self) -> bool:
        """Whether rings are among them."""
        return self.algo == "ring" or (self.algo == "auto" and not self.k)

    def folded(self, mesh: Mesh, axis: str) -> bool:
        """Whether folded trees over ``axis`` are among them."""
        if not folds(mesh, axis):
            return False
        long = mesh.size(mesh.whole(axis)) >= LEAST_FOLDED
        chosen = self.fold and self.algo == "auto" and not self.k
        return self.algo == "folded" or (chosen and long)

    def flat(self, mesh: Mesh, axis: str) -> bool:
        """Whether other trees over ``axis`` are."""
        return self.algo != "folded" or not self.folded(mesh, axis)

    def folds(self, mesh: Mesh, axis: str) -> list[str]:
        """How what is folded over ``axis`` comes back."""
        by_segments = self.segmented and in_segments(mesh, axis)
        return [*FOLDED] if by_segments else ["folded"]

    def folded_trees(self, mesh: Mesh, axis: str) -> list[tuple[int, ...]]:
        """Groups of the folded trees over ``axis``. Of a line with segments, and of these, those of
        two phases that share their chains are among them."""
        segments = mesh.segments // 2 if axis == mesh.across and mesh.segments > 1 else 1
        reach = tree_size(mesh, axis, True)
        found = tree_candidates(reach, segments, self.k)
        inner = mesh.size(mesh.inner)
        if self.segmented and self.k in (0, 2) and in_segments(mesh, mesh.whole(axis)):
            half = tree_size(mesh, mesh.across, True)
            group = min(
                (g for g in range(1, inner + 1) if inner % g == 0), key=lambda g: g + half // g
            )
            shared = tuple(g for g in (group, reach // group) if g > 1)
            if shared not in found:
                found.append(shared)
        return found

    def trees(self, mesh: Mesh, axis: str, dealt: bool) -> list[tuple[int, ...]]:
        """Groups of the trees over ``axis``. Where a ring is asked for, what cannot be ``dealt``
        out takes a tree of two phases."""
        if self.algo == "ring":
            return [] if dealt else tree_candidates(mesh.size(axis), 1, 2)
        segments = mesh.segments if axis == mesh.across else 1
        return tree_candidates(mesh.size(axis), segments, TREES.get(self.algo, self.k))


ANY = Algorithms()


@lru_cache(maxsize=64)
def largest_sets(
    mesh: Mesh, algorithms: Algorithms, inputs: int | None, colors: int | None
) -> tuple[Tracks, ...]:
    """The sets of tracks that take at most ``inputs`` queues and ``colors`` (None: any number), to
    which nothing can be added."""
    room = inf if inputs is None else inputs, inf if colors is None else colors
    lines = {axis: _lines(mesh, axis, algorithms, room) for axis in mesh.plane}

    @cache
    def largest(axis: str, inputs: float, colors: float) -> list[Tracks]:
        taken = lines[axis].items()
        return _largest(tracks for tracks, (i, c) in taken if i <= inputs and c <= colors)

    def beside(tracks: Tracks, axis: str) -> list[Tracks]:
        """The largest along ``axis`` beside ``tracks`` along the other one."""
        inputs, colors = lines[mesh.other(axis)][tracks]
        return largest(axis, room[0] - inputs, room[1] - colors)

    return tuple(
        one | other
        for one in lines[mesh.down]
        for other in beside(one, mesh.across)
        if one in beside(other, mesh.down)
    )


def _largest(sets: Iterable[Tracks]) -> list[Tracks]:
    """Those of ``sets`` that are no part of another one."""
    found: list[Tracks] = []
    for one in sorted(dict.fromkeys(sets), key=len, reverse=True):
        if not any(one < other for other in found):
            found.append(one)
    return found


def _lines(
    mesh: Mesh, axis: str, algorithms: Algorithms, room: tuple[float, float]
) -> dict[Tracks, tuple[int, int]]:
    """Every union of tracks along ``axis`` of the plane that fits by itself, and the queues and
    colors that it takes; only that of all where there is no limit."""
    parts = dict.fromkeys(_parts(mesh, axis, algorithms))
    empty: Tracks = frozenset()
    every = empty.union(*parts)
    if room == (inf, inf):
        return {every: (0, 0)}
    found, tried = {empty: (0, 0)}, {empty}
    cores = _largest(heard_along(mesh, axis, every))
    for part in parts:
        for known in list(found):
            tracks = known | part
            if tracks in tried:
                continue
            tried.add(tracks)
            if all(len(heard & tracks) <= room[0] for heard in cores):
                inputs, colors = room_of(mesh, tracks)
                if inputs <= room[0] and colors <= room[1]:
                    found[tracks] = inputs, colors
    return found


def _parts(mesh: Mesh, axis: str, algorithms: Algorithms) -> Iterable[Tracks]:
    """What may be added at a time: chains of a tree, the multicast of an axis, its ring."""
    for part in dict.fromkeys((axis, own_axis(mesh, mesh.inner))):
        if mesh.whole(part) != axis or mesh.size(part) == 1:
            continue
        yield frozenset({ring_track(mesh, part)})
        if algorithms.rooted:
            yield frozenset({cast_track(mesh, part)})
        if algorithms.flat(mesh, part) or algorithms.rooted:
            for dealt in (True, False):
                for groups in algorithms.trees(mesh, part, dealt):
                    yield tree_tracks(mesh, part, groups, not algorithms.rooted)
        if algorithms.folded(mesh, part):
            for algo in algorithms.folds(mesh, part):
                for groups in algorithms.folded_trees(mesh, part):
                    yield tree_tracks(mesh, part, groups, True, True, algo == "segmented")
