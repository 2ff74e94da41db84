"""Which channels reductions share, and how many queues and colors (R of the PLMR model) these take.

A tree goes to the first core of its axis, or is *folded*: the halves of an axis of the plane go to
the two cores at its middle at once. The one before the middle hands its sum over a ``cross`` to the
other, which sends that of all back both ways. Segments lie in one half each, and have the core
nearest to the middle for their first. A *segmented* tree sends the sum to the first core of each
segment, and from there to the others as the sums of segments go.

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
    core to all others, or to multiples of ``stride``; ``ring``: around the ranks; ``cross``: from
    the core before the middle to the one behind it. Inside each segment where ``axis`` is a
    factor. Those that are ``folded`` count from the middle.
    """

    kind: Literal["chain", "cast", "ring", "cross"]
    axis: str
    stride: int = 1
    folded: bool = False


Tracks = frozenset[Track]


def folds(mesh: Mesh, axis: str) -> bool:
    """Whether trees over ``axis`` can be folded: its line has two equal halves of at least two
    cores, and each of its segments lies in one of them."""
    line, size = mesh.size(mesh.whole(axis)), mesh.size(axis)
    return line >= 4 and line % 2 == 0 and (size == line or line // 2 % size == 0)


def in_segments(mesh: Mesh, axis: str) -> bool:
    """Whether folded trees over ``axis`` can be segmented: it is all of its line, each half of
    which has segments, at least two in all."""
    return (
        axis == mesh.across and mesh.segments > 1 and folds(mesh, axis) and folds(mesh, mesh.inner)
    )


def tree_size(mesh: Mesh, axis: str, folded: bool) -> int:
    """The cores of a tree over ``axis``."""
    size = mesh.size(axis)
    return size // 2 if folded and size == mesh.size(mesh.whole(axis)) else size


def chain_track(mesh: Mesh, axis: str, stride: int, folded: bool = False) -> Track:
    """The chains of ``stride`` cores along ``axis``. Those inside segments run along those of the
    whole axis where every segment begins at a multiple of the stride."""
    joins = mesh.size(axis) % stride == 0
    return Track("chain", mesh.whole(axis) if joins else own_axis(mesh, axis), stride, folded)


def cast_track(mesh: Mesh, axis: str, folded: bool = False, stride: int = 1) -> Track:
    """The multicasts from the first core of ``axis``."""
    return Track("cast", own_axis(mesh, axis), stride, folded)


def ring_track(mesh: Mesh, axis: str) -> Track:
    """The ring of ``axis``."""
    return Track("ring", own_axis(mesh, axis))


def tree_tracks(
    mesh: Mesh,
    axis: str,
    groups: Iterable[int],
    everywhere: bool,
    folded: bool = False,
    segmented: bool = False,
) -> Tracks:
    """What a tree with phases of ``groups`` runs on; a sum that is wanted ``everywhere`` returns by
    a multicast, or by two where it is ``segmented``."""
    found = {chain_track(mesh, axis, stride, folded) for stride, _ in phases(groups)}
    if segmented:
        found.add(cast_track(mesh, axis, True, mesh.size(mesh.inner)))
        found.add(cast_track(mesh, mesh.inner, True))
    elif everywhere:
        found.add(cast_track(mesh, axis, folded))
    if folded and tree_size(mesh, axis, folded) < mesh.size(axis):
        found.add(Track("cross", own_axis(mesh, axis), 1, folded))
    return frozenset(found)


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
    length, size = mesh.size(mesh.whole(track.axis)), tree_size(mesh, track.axis, track.folded)
    if track.kind == "cross":
        return 1 << size
    places = {
        "chain": range(0, size - track.stride, track.stride),
        "cast": range(track.stride, size, track.stride),
        "ring": range(size if size > 1 else 0),
    }[track.kind]
    segment = sum(1 << place for place in places)
    if not track.folded:
        return sum(segment << base for base in range(0, length, size))
    half = length // 2
    outwards = sum(segment << base for base in range(0, half, size))
    inwards = int(f"{outwards:0{half}b}"[::-1], 2)
    if track.kind == "cast" and size == half:  # the core before the middle hears the other one
        inwards |= 1 << (half - 1)
    return inwards | outwards << half


def heard_along(mesh: Mesh, axis: str, tracks: Iterable[Track]) -> list[Tracks]:
    """Those of ``tracks`` along ``axis`` of the plane on which each core of a line receives."""
    places = [(track, receivers(mesh, track)) for track in sorted(tracks)]
    return [
        frozenset(track for track, bits in places if bits >> core & 1)
        for core in range(mesh.size(axis))
    ]


@lru_cache(maxsize=4096)
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
    meets = (
        frozenset(j for j, other in enumerate(masks) if j != i and mask & other)
        for i, mask in enumerate(masks)
    )
    return _numbers_of(tuple(meets))


@lru_cache(maxsize=4096)
def _numbers_of(meets: tuple[frozenset[int], ...]) -> int:
    """How many numbers the nodes of a conflict graph take."""
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
