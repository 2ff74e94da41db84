"""Where a rank stands among the ranks that run a graph together, and how they exchange arrays."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Barrier

import numpy as np

from meshc.interp.named import Array
from meshc.ir.core import Op
from meshc.support.diagnostics import fail


class Meeting:
    """``count`` ranks that exchange arrays, each in a thread of its own. All of them come to the
    same exchanges in the same order, as they run one graph."""

    def __init__(self, count: int) -> None:
        self.barrier = Barrier(count)
        self._brought: list[Array | None] = [None] * count

    def exchanged(self, rank: int, array: Array) -> list[Array]:
        """What all ranks bring, in their order. Raises ``threading.BrokenBarrierError`` once
        another rank has failed."""
        self._brought[rank] = array
        self.barrier.wait()
        arrays = [brought for brought in self._brought if brought is not None]
        self.barrier.wait()
        return arrays


@dataclass(frozen=True)
class Place:
    """The number of a rank, and the meeting of all; of a graph that runs alone there is none."""

    rank: int = 0
    meeting: Meeting | None = None

    def number(self, op: Op) -> int:
        """The number of the rank, which ``op`` needs. Raises ``interp-ranks`` where there are no
        ranks."""
        self._met(op)
        return self.rank

    def exchanged(self, array: Array, op: Op) -> list[Array]:
        """What all ranks bring to ``op``, in their order. Raises ``interp-ranks``."""
        return self._met(op).exchanged(self.rank, array)

    def own_part(self, array: Array, axis: int, extent: int, op: Op) -> Array:
        """The ``extent`` elements of ``axis`` that are this rank's, zeros beyond its end. Raises
        ``interp-ranks``."""
        first = self.number(op) * extent
        part = array[(slice(None),) * axis + (slice(first, first + extent),)]
        missing = [(0, extent - part.shape[a] if a == axis else 0) for a in range(array.ndim)]
        return np.pad(part, missing)

    def _met(self, op: Op) -> Meeting:
        if self.meeting is None:
            fail(
                "interp-ranks",
                f"{op.NAME} runs on all ranks together, and one was run alone",
                op.span,
                help="meshc.interp.together.run_ranks runs all ranks of a graph",
            )
        return self.meeting


ALONE = Place()
"""The place of a graph that is not of several ranks."""
