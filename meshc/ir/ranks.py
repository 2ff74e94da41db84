"""Ranks: a model in tensor parallel, where each rank (a GPU) runs the same graph on its own parts.

The header of a graph, and of the program of tasks that it becomes, says how many ranks there are
and which dims are dealt to them:

    ranks count = 4
    part dim = H_rank, whole = H, team = 4, copies = 2
    part dim = G_rank, whole = G, copies = 2
    part dim = F_rank, whole = F

A dim that is dealt has the extent of one rank's part, the same on all ranks; what lies beyond the
end of the whole dim is padding, of which weights hold zeros. Values of other dims alone are the
same on all ranks, or sums that an ``all_reduce`` completes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MOST_RANKS = 1 << 16

RANK = "rank"
"""The run-time scalar of a program of tasks that says which of the ranks runs it."""


@dataclass(frozen=True)
class RankPart:
    """The dim ``dim`` is a rank's part of the dim ``whole``.

    Teams of ``copies`` neighbouring ranks each have the next ``team`` elements (0: as many as one
    part has). Where a part is as long as those, all ranks of a team have the same one, as the ranks
    that read one key head do; else they share them, as query heads of that key head.
    """

    dim: str
    whole: str
    team: int = 0
    copies: int = 1

    def elements(self, rank: int, extents: Mapping[str, int]) -> list[int | None]:
        """Which element of the whole dim each place of the part of ``rank`` holds; None where it is
        padding."""
        own, whole = extents[self.dim], extents[self.whole]
        team = self.team or own
        first = 0 if team == own else rank % self.copies * own
        start = rank // self.copies * team
        places = (first + place for place in range(own))
        return [start + p if p < team and start + p < whole else None for p in places]


@dataclass(frozen=True)
class Ranks:
    """How many ranks run a module, and which of its dims are dealt to them."""

    count: int
    parts: tuple[RankPart, ...] = ()

    def part_of(self, dim: str) -> RankPart | None:
        """The part that ``dim`` is of another dim, if it is one."""
        return next((part for part in self.parts if part.dim == dim), None)


def rank_mistakes(ranks: Ranks | None, dims: Mapping[str, int], level: str) -> Iterator[str]:
    """What is wrong with ``ranks`` of a module of ``level`` that declares ``dims``, a sentence
    each."""
    if ranks is None:
        return
    if level not in ("graph", "task"):
        yield "ranks: they are of graphs and tasks; layouts of the mesh level say what cores have"
    if not 1 <= ranks.count <= _MOST_RANKS:
        yield f"ranks: there cannot be {ranks.count}, but 1 to {_MOST_RANKS:,}"
        return
    names = [part.dim for part in ranks.parts]
    if len(set(names)) < len(names):
        yield "part: a dim is a part of two others"
    for part in ranks.parts:
        unknown = [name for name in (part.dim, part.whole) if name not in dims]
        for name in unknown:
            yield f"part: {name} is no dim of this module"
        if unknown:
            continue
        if part.copies < 1 or part.team < 0:
            yield f"part: {part.dim} has copies = {part.copies}, team = {part.team}"
        elif not _holds_all(part, ranks.count, dims):
            words = f"{ranks.count} parts of {part.dim} do not hold each element of {part.whole}"
            yield f"part: {words}"


def _holds_all(part: RankPart, count: int, dims: Mapping[str, int]) -> bool:
    """Whether all ranks together hold each element once, in order; those of copies count once."""
    own, whole = dims[part.dim], dims[part.whole]
    team = part.team or own
    end = 0
    for rank in range(0, count, part.copies if team == own else 1):
        first = 0 if team == own else rank % part.copies * own
        start = rank // part.copies * team
        stop = min(start + min(first + own, team), whole)
        if start + first >= stop:
            continue  # padding alone
        if start + first != end:
            return False
        end = stop
    return end == whole
