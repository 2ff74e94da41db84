"""Elements chosen by comparing them: the gates of experts, and where a largest element stands.

The largest of a row is a vector maximum; where it stands first is found by halves, of which the
first is taken while it has an equal element. So one choice costs two passes over the row, and a
choice of k elements k times as much. Constants are measured on the simulator, one kernel at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.analysis.csl.costs import LOOP, Costs, walked
from meshc.analysis.csl.windows import Window
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

HALVED = 26
"""Cycles of a choice between the halves of a row, its maximum apart."""
_PICKED = 14
"""Taking an element, and leaving it out from then on."""
_OF_A_GROUP = 26
"""Where a group begins, and the test whether it is kept."""
_ADDED = 4
"""Adding a gate to the sum of a row."""
_NORMALISED = 40
"""A division by the sum of gates."""
_OF_A_ROW = 22
"""The loop around a row, and where it begins."""


@dataclass(frozen=True)
class Choosing:
    """How a ``top_k`` chooses ``count`` of ``lanes`` elements, from the ``kept`` ``groups`` whose
    ``best`` elements have the largest sums; where all groups are kept they count as one."""

    lanes: int
    count: int
    groups: int
    kept: int
    best: int
    normalised: bool
    biased: bool

    @property
    def group(self) -> int:
        """Elements of a group."""
        return self.lanes // self.groups

    @property
    def scratch(self) -> int:
        """f32 elements: those among which the row still chooses, a number for each group, and the
        elements of one where several of its best are added up."""
        if self.groups == 1:
            return self.lanes
        return self.lanes + self.groups + (self.group if self.best > 1 else 0)


def choosing(op: Compute, lanes: int) -> Choosing:
    """What a ``top_k`` of ``lanes`` elements says."""
    count, groups, kept, best = (
        int(str(op.params[name])) for name in ("count", "groups", "kept_groups", "group_top")
    )
    grouped = groups > kept
    normalised, biased = bool(op.params["normalise"]), bool(op.params["biased"])
    return Choosing(lanes, count, groups if grouped else 1, kept, best, normalised, biased)


def search_cycles(lanes: int, most: Callable[[int], int]) -> int:
    """Cycles of finding an element among ``lanes``, the later half taken each time; ``most`` are
    those of the maximum of so many."""
    found = 0
    while lanes > 1:
        half = lanes // 2
        found += HALVED + most(half)
        lanes -= half
    return found


def top_k_cycles(op: Compute, windows: list[Window], costs: Costs) -> int:
    """Predicted cycles of a ``top_k`` of all rows that there can be."""
    to = windows[0]
    said = choosing(op, to.dims[-1].extent)
    added = _ADDED if said.normalised else 0
    taken = said.count * (_picked(costs, said.lanes) + LOOP + added)
    row = _around(costs, to.dtype, said) + _groups_left(costs, said) + taken
    rows = to.size // said.lanes
    return rows * (row + (_OF_A_ROW if rows > 1 else 0))


def _around(costs: Costs, dtype: DType, said: Choosing) -> int:
    """Cycles of a row's candidates, of zeros for the gates, and of their division by a sum."""
    cleared = walked(1, 1) + costs.vector("add", dtype, said.lanes, ())
    found = cleared + _copied(costs, dtype, said.lanes)
    if said.biased and dtype.half:
        found += cleared
    if said.normalised:
        found += _NORMALISED + walked(2, 1) + costs.vector("mul", DType.F32, said.lanes, ())
        found += 2 * dtype.half * _copied(costs, dtype, said.lanes)
    return found


def _groups_left(costs: Costs, said: Choosing) -> int:
    """Cycles of leaving out the groups of a row that are not kept."""
    if said.groups == 1:
        return 0
    most = walked(2, 1) + _most(costs, said.group)
    if said.best > 1:
        spare = _copied(costs, DType.F32, said.group)
        most = spare + said.best * (_picked(costs, said.group) + LOOP)
    kept = said.kept * (_picked(costs, said.groups) + LOOP)
    others = (said.groups - said.kept) * _copied(costs, DType.F32, said.group)
    return said.groups * (most + _OF_A_GROUP) + kept + others


def _picked(costs: Costs, lanes: int) -> int:
    """Cycles of taking the largest of so many elements."""
    search = search_cycles(lanes, lambda half: _most(costs, half))
    return walked(2, 1) + _most(costs, lanes) + search + _PICKED


def _most(costs: Costs, lanes: int) -> int:
    """Cycles of a maximum of so many f32, its set-up apart; as many at once as are converted."""
    return -(-lanes // costs.lanes_of_codes("convert"))


def _copied(costs: Costs, dtype: DType, lanes: int) -> int:
    """Cycles of f32 copied, or made of what has the type ``dtype``, or such made of them."""
    if dtype.half:
        return walked(2) + _most(costs, lanes)
    return walked(2) + costs.vector("add", dtype, lanes, ())
