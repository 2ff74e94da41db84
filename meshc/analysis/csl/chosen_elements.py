"""Elements chosen by comparing them: the gates of experts, and where a largest element stands.

The largest of a row is a vector maximum; where it stands first is found by halves, of which the
first is taken while it has an equal element. So one choice costs two passes over the row, and a
choice of k elements k times as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.ops.tile import Compute


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
