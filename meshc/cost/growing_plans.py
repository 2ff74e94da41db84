"""What a plan costs while it grows: by every set of channels that its reductions might share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from meshc.cost.mesh_ops import MeshCosts, TypeOf
from meshc.cost.routing_demand import NO_DEMAND, Demand
from meshc.cost.sharing import Totals
from meshc.cost.terms import NOTHING, Cost
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import mesh


@dataclass(frozen=True, eq=False)
class PlanCost:
    """``fixed`` is what all but reductions costs, ``demand`` what the plan asks of routing, and
    ``totals`` the cycles of that by each set of channels (``Sharing.sets``)."""

    fixed: Cost
    demand: Demand
    totals: Totals

    @staticmethod
    def nothing(costs: MeshCosts | None) -> PlanCost:
        """The cost of no op at all; ``costs`` is None where nothing has any."""
        return PlanCost(NOTHING, NO_DEMAND, np.zeros(len(costs.sharing.sets) if costs else 1))

    @property
    def total(self) -> float:
        """Predicted cycles on the best set of channels; infinite where the plan fits none."""
        return self.fixed.total + float(self.totals.min(initial=np.inf))

    @property
    def each(self) -> Totals:
        """Predicted cycles on each set of channels."""
        return self.totals + self.fixed.total

    def __add__(self, other: PlanCost) -> PlanCost:
        return PlanCost(
            self.fixed + other.fixed, self.demand + other.demand, self.totals + other.totals
        )

    def __mul__(self, times: int) -> PlanCost:
        return PlanCost(self.fixed * times, self.demand * times, self.totals * times)


@dataclass(frozen=True, eq=False)
class PlanCosts:
    """What single ops cost a plan. A search emits the same ones on many ways, so those ``known``
    are kept by what their cost depends on: attributes, and types of operands and results."""

    costs: MeshCosts
    known: dict[Hashable, PlanCost] = field(default_factory=dict)

    def of(self, op: Op, type_of: TypeOf, runs: int = 1) -> PlanCost:
        """The cost of so many ``runs`` of one op, without those in its body."""
        kinds = tuple(map(type_of, (*op.operands, *op.results)))
        key = (type(op), runs, *op.attributes().values(), kinds)
        found = self.known.get(key)
        if found is None:
            demand = self.costs.demand(op, type_of)
            totals = self.costs.sharing.totals(demand)
            found = PlanCost(self.costs.of(op, type_of), demand, totals) * runs
            self.known[key] = found
        return found


def demand_of(runs: Iterable[tuple[Op, int]], costs: MeshCosts) -> Demand:
    """What ops of the mesh level ask of routing, each as often as it runs."""
    return sum((costs.demand(op) * times for op, times in runs), NO_DEMAND)


def runs_of(module: Module) -> list[tuple[Op, int]]:
    """Every op of a module of the mesh level, and how often a run comes to it."""

    def of_block(block: Block, times: int) -> Iterator[tuple[Op, int]]:
        for op in block.ops:
            yield op, times
            if isinstance(op, mesh.Repeat):
                yield from of_block(op.regions[0], times * module.dims[op.dim])

    return list(of_block(module.function.body, 1))
