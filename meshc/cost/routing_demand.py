"""What a program asks of the routing of a core (R of PLMR), before algorithms are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshc.analysis.traffic.tracks import Track
from meshc.cost.terms import NOTHING, Cost


@dataclass(frozen=True)
class Reduced:
    """A reduction as far as its cost goes: ``words`` per core over ``axis``.

    ``part`` are the words of one core's part where a ring deals them out; 0 where that cannot be,
    as each word means nothing without others; ``dealing`` is what a core does to cut its words into
    such parts and to join those of the result. The result is wanted ``everywhere``, or on the first
    core of the axis. ``work`` is what a core does with a message before it can send on; None for
    what is added as it arrives.
    """

    axis: str
    words: int
    part: int
    everywhere: bool = True
    work: Cost | None = None
    dealing: Cost = NOTHING


@dataclass(frozen=True)
class Demand:
    """How often each reduction runs, and the ``tracks`` that everything else takes."""

    reductions: Mapping[Reduced, float] = field(default_factory=dict)
    tracks: frozenset[Track] = frozenset()

    def __add__(self, other: Demand) -> Demand:
        if not other.reductions and other.tracks <= self.tracks:
            return self
        counts = dict(self.reductions)
        for reduced, count in other.reductions.items():
            counts[reduced] = counts.get(reduced, 0) + count
        return Demand(counts, self.tracks | other.tracks)

    def __mul__(self, times: float) -> Demand:
        return Demand({r: count * times for r, count in self.reductions.items()}, self.tracks)


NO_DEMAND = Demand()
