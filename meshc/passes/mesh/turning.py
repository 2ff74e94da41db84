"""Rings that turn both ways, ahead of the first step of products of many rows.

Cannon's alignment turns the left operand of a row of the mesh, and cached rows in a column of a
segment, by up to all but one of the chunks of a ring. With a second ring the other way it is half
of them. That ring takes an input queue and colors of every core, which reductions then lack.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

from meshc.analysis.traffic.tracks import ring_track
from meshc.cost.growing_plans import runs_of
from meshc.cost.mesh_ops import MeshCosts
from meshc.cost.routing_demand import Demand
from meshc.cost.sharing import Choice
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.mesh.select_gemm import SKEWED
from meshc.support.diagnostics import Diagnostics

Turning = ops.Gemm | ops.GemmT


def turn_one_way(module: Module) -> None:
    """Let no operand turn both ways."""
    for op in module.walk():
        if isinstance(op, Turning):
            op.both_ways = False


def turned_both_ways(
    module: Module, costs: MeshCosts, demand: Demand, choice: Choice, report: Diagnostics
) -> Choice:
    """Let operands of ``module`` turn both ways along the axes where that takes the fewest cycles
    in all; the ``choice`` of reductions beside these rings, which is the given one where there are
    none. Only where the cycles of emitted steps are known, and in one region: channels over the
    edges of several take what queues there are. No reduction goes around a ring for it, which takes
    up to twice the cycles that are predicted."""
    known = costs.kernels is not None and costs.mesh.regions == 1
    turning = turned_by_axis(module, costs) if known else {}
    saved = {
        axis: sum(_saved(op, times, costs) for op, times in each) for axis, each in turning.items()
    }
    best, least, taken = choice, choice.cost.total, tuple[str, ...]()
    for count in range(1, len(turning) + 1):
        for axes in combinations(turning, count):
            rings = [ring_track(costs.mesh, axis) for axis in axes]
            beside = costs.sharing.beside(rings).cheapest(demand)
            if beside is None or _rings(beside) > _rings(choice):
                continue
            total = beside.cost.total - sum(saved[axis] for axis in axes)
            if total < least:
                best, least, taken = beside, total, axes
    for axis in taken:
        for op, _ in turning[axis]:
            op.both_ways = True
        report.remark(
            "turns",
            f"operands turn both ways along {axis} ahead of {len(turning[axis])} products: "
            f"{saved[axis]:.0f} cycles less",
        )
    return best


def turned_by_axis(module: Module, costs: MeshCosts) -> dict[str, list[tuple[Turning, int]]]:
    """The products whose operands cores turn, by the axis along which they do, each with how often
    it runs."""
    found: dict[str, list[tuple[Turning, int]]] = defaultdict(list)
    for op, times in runs_of(module):
        if isinstance(op, Turning) and (axis := _turned_along(op, costs)):
            found[axis].append((op, times))
    return dict(found)


def _turned_along(op: Turning, costs: MeshCosts) -> str:
    """The axis along which an operand of ``op`` turns ahead of the first step, if any does."""
    mesh = costs.mesh
    if mesh.rows == 1 or mesh.size(op.axis) == 1:
        return ""
    if costs.turns_cache(op):
        return mesh.down
    skewed = isinstance(op, ops.Gemm) and op.algo in SKEWED and not op.left_aligned
    return op.axis if skewed else ""


def _rings(choice: Choice) -> int:
    """How many reductions go around rings."""
    return sum(way.algo == "ring" for way in choice.ways.values())


def _saved(op: Turning, times: int, costs: MeshCosts) -> float:
    """Predicted cycles of all runs of ``op`` that a second ring saves."""
    before = costs.of(op).total
    op.both_ways = True
    after = costs.of(op).total
    op.both_ways = False
    return times * (before - after)
