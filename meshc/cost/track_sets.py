"""The largest sets of tracks that fit a device: all that reductions of a mesh may have at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshc.analysis.traffic.tracks import (
    Tracks,
    cast_track,
    folds,
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


@dataclass(frozen=True)
class _Line:
    """Tracks along one axis of the plane, and the queues and colors that they take."""

    tracks: Tracks
    inputs: int
    colors: int

    def within(self, inputs: float, colors: float) -> bool:
        """Whether they take no more than that."""
        return self.inputs <= inputs and self.colors <= colors


@lru_cache(maxsize=64)
def largest_sets(
    mesh: Mesh, algorithms: Algorithms, inputs: int | None, colors: int | None
) -> tuple[Tracks, ...]:
    """The sets of tracks that take at most ``inputs`` queues and ``colors`` (None: any number), to
    which nothing can be added."""
    room = [float("inf") if n is None else n for n in (inputs, colors)]
    down, across = (_lines(mesh, axis, algorithms, room) for axis in mesh.plane)
    found: list[tuple[_Line, _Line]] = []
    for one in down:
        left = room[0] - one.inputs, room[1] - one.colors
        found += [(one, other) for other in _largest([o for o in across if o.within(*left)])]
    return tuple(
        one.tracks | other.tracks
        for one, other in found
        if not any(
            one.tracks < more.tracks and more.within(room[0] - other.inputs, room[1] - other.colors)
            for more in down
        )
    )


def _largest(lines: Sequence[_Line]) -> list[_Line]:
    """The lines whose tracks are not all among those of another line."""
    return [one for one in lines if not any(one.tracks < other.tracks for other in lines)]


def _lines(mesh: Mesh, axis: str, algorithms: Algorithms, room: Sequence[float]) -> list[_Line]:
    """Every union of tracks along ``axis`` of the plane that fits by itself, of folded trees or of
    others; only that of all where there is no limit."""
    kinds = [kind for kind in _KINDS if getattr(algorithms, kind)(mesh, axis)]
    parts = {kind: list(dict.fromkeys(_parts(mesh, axis, algorithms, kind))) for kind in kinds}
    if room[0] == room[1] == float("inf"):
        return [_Line(frozenset().union(*(one for of in parts.values() for one in of)), 0, 0)]
    empty: Tracks = frozenset()
    every: dict[Tracks, _Line] = {}
    for of in parts.values():
        found = {empty: _Line(empty, 0, 0)}
        for part in of:
            for known in list(found.values()):
                tracks = known.tracks | part
                if tracks not in found and (line := _line(mesh, tracks)).within(*room):
                    found[tracks] = line
        every |= found
    return list(every.values())


def _line(mesh: Mesh, tracks: Tracks) -> _Line:
    return _Line(tracks, *room_of(mesh, tracks))


_KINDS = ("flat", "folded")


def _parts(mesh: Mesh, axis: str, algorithms: Algorithms, kind: str) -> Iterable[Tracks]:
    """What may be added at a time: chains of a tree, the multicast of an axis, its ring."""
    for part in dict.fromkeys((axis, own_axis(mesh, mesh.inner))):
        if mesh.whole(part) != axis or mesh.size(part) == 1:
            continue
        yield frozenset({ring_track(mesh, part)})
        if kind == "folded":
            for algo in algorithms.folds(mesh, part):
                for groups in algorithms.folded_trees(mesh, part):
                    yield tree_tracks(mesh, part, groups, True, True, algo == "segmented")
            continue
        if algorithms.rooted:
            yield frozenset({cast_track(mesh, part)})
        for dealt in (True, False):
            for groups in algorithms.trees(mesh, part, dealt):
                yield tree_tracks(mesh, part, groups, not algorithms.rooted)
