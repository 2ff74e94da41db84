"""Runs programs of tasks on all ranks at once, from the arrays of the whole model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshc.interp.inputs import Scalars
from meshc.interp.named import Array
from meshc.interp.task_orders import Order
from meshc.interp.tasks import TaskMachine, run_together
from meshc.interp.together import rank_part
from meshc.ir.module import Module
from meshc.ir.ranks import RANK
from meshc.support.diagnostics import fail


class TaskNode:
    """The GPUs of all ranks of ``module``, of the task level, each with memory of its own. What all
    have of a buffer with ``ranks`` is one array: one copy, as a give reaches all at once.

    An ``order`` is one of the tasks of all ranks. Meetings keep the blocks of one rank apart, those
    of all ranks those of all.
    """

    def __init__(
        self, module: Module, constant: Mapping[str, Array], order: Order | None = None
    ) -> None:
        """Weights are those of the whole model, by name."""
        assert module.ranks is not None
        self._module = module
        self.ranks = [TaskMachine(module, order) for _ in range(module.ranks.count)]
        for machine in self.ranks[1:]:
            machine.share_with(self.ranks[0])
        self.load(constant)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Give each rank its part of ``arrays``, by the names of in-ports."""
        kinds = {p.name: p.tensor for p in self._module.ports if p.direction == "in"}
        for rank, machine in enumerate(self.ranks):
            for name in kinds.keys() & arrays.keys():
                machine.load(name, rank_part(self._module, kinds[name], arrays[name], rank))

    def run(self, scalars: Scalars) -> dict[str, Array]:
        """The results, which all ranks have alike. Raises ``interp-ranks`` where they do not, and
        what :meth:`meshc.interp.port_memory.Machine.run` raises."""
        given = [m.begin({**scalars, RANK: rank}) for rank, m in enumerate(self.ranks)]
        with np.errstate(all="ignore"):
            run_together(self.ranks, [values for values, _ in given], given[0][1])
        first, *others = (m.results(v) for m, (v, _) in zip(self.ranks, given, strict=True))
        for rank, found in enumerate(others, start=1):
            if not all(np.array_equal(found[name], first[name], True) for name in first):
                fail("interp-ranks", f"the results of rank {rank} are not those of rank 0")
        return first
