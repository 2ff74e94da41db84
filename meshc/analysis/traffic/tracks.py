"""Which channels reductions share, and how many queues and colors (R of the PLMR model) these take.

A *track* is what tells two such channels apart: chains of one stride along one axis are one
track, whoever reduces along them and in whatever groups; so are the multicasts from the first core
of an axis, and the ring of its ranks. Tracks along one axis of the plane are its *line*.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from meshc.analysis.traffic.queues import fewest_numbers
from meshc.ir.mesh import Mesh


class Track(NamedTuple):
    """``chain``: from each multiple of ``stride`` to the one before it; ``cast``: from the first
    core to all others; ``ring``: around the ranks. Inside each segment where ``axis`` is a factor.
    """

    kind: Literal["chain", "cast", "ring"]
    axis: str
    stride: int = 1


Tracks = frozenset[Track]


def chain_track(mesh: Mesh, axis: str, stride: int) -> Track:
    """The chains of ``stride`` cores along ``axis``. Those inside segments run along those of the
    whole axis where every segment begins at a multiple of the stride."""
    joins = mesh.size(axis) % stride == 0
    return Track("chain", mesh.whole(axis) if joins else own_axis(mesh, axis), stride)


def cast_track(mesh: Mesh, axis: str) -> Track:
    """The multicasts from the first core of ``axis``."""
    return Track("cast", own_axis(mesh, axis))


def ring_track(mesh: Mesh, axis: str) -> Track:
    """The ring of ``axis``."""
    return Track("ring", own_axis(mesh, axis))


def tree_tracks(mesh: Mesh, axis: str, groups: Iterable[int], everywhere: bool) -> Tracks:
    """What a tree with phases of ``groups`` runs on; a sum that is wanted ``everywhere`` returns by
    a multicast."""
    chains = {chain_track(mesh, axis, stride) for stride, _ in phases(groups)}
    return frozenset(chains | ({cast_track(mesh, axis)} if everywhere else set()))


def phases(groups: Iterable[int]) -> list[tuple[int, int]]:
    """Stride and group of each phase of a tree; a group of one core is none."""
    found, stride = [], 1
    for group in groups:
        if group > 1:
            found.append((stride, group))
        stride *= group
    return found


def own_axis(mesh: Mesh, axis: str) -> str:
    """``axis``, or the whole one of which it is the only part."""
    whole = mesh.whole(axis)
    return whole if mesh.size(whole) == mesh.size(axis) else axis


@lru_cache(maxsize=4096)
def receivers(mesh: Mesh, track: Track) -> int:
    """The positions on its line at which a core receives on ``track``, as bits."""
    length, size = mesh.size(mesh.whole(track.axis)), mesh.size(track.axis)
    places = {
        "chain": range(0, size - track.stride, track.stride),
        "cast": range(1, size),
        "ring": range(size if size > 1 else 0),
    }[track.kind]
    segment = sum(1 << place for place in places)
    return sum(segment << base for base in range(0, length, size))


def colors_of(mesh: Mesh, track: Track) -> int:
    """Colors that ``track`` takes: one where there is one message to a line, two for chains by
    parity, three for a ring."""
    pairs = receivers(mesh, track).bit_count()
    if track.kind == "cast" or pairs <= 1:
        return min(pairs, 1)
    return 2 if track.kind == "chain" else min(3, mesh.size(track.axis))


def queues_of(mesh: Mesh, tracks: Iterable[Track]) -> int:
    """Input queues that ``tracks`` of one line take: those that meet at a core need two."""
    masks = [mask for track in sorted(tracks) if (mask := receivers(mesh, track))]
    meets = [
        {j for j, other in enumerate(masks) if j != i and mask & other}
        for i, mask in enumerate(masks)
    ]
    return max(fewest_numbers(meets), default=-1) + 1


def room_of(mesh: Mesh, tracks: Iterable[Track]) -> tuple[int, int]:
    """Input queues of a core and colors that ``tracks`` take. Those of different lines meet
    everywhere, so that queues add up."""
    every = list(tracks)
    lines = {mesh.whole(track.axis) for track in every}
    queues = sum(
        queues_of(mesh, [t for t in every if mesh.whole(t.axis) == line]) for line in lines
    )
    return queues, sum(colors_of(mesh, track) for track in every)
