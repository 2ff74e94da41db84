"""What a module of the mesh level takes, op by op, by the algorithms that passes chose for it.

These are the costs by which ``partition``, ``select-gemm``, ``select-dispatch`` and
``select-collective`` choose, added up over the ops of the module that they left. Nothing overlaps
but what an algorithm overlaps itself; what passes between regions is left out.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.cost.growing_plans import runs_of
from meshc.cost.mesh_ops import MeshCosts
from meshc.cost.mesh_streams import Streams
from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.terms import NOTHING, Cost
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops

_BETWEEN_REGIONS = "what passes from region to region"


def searched(module: Module, requests: int = 1, streams: Streams | None = None) -> Prediction:
    """Predicted cycles of a run of a mesh-level ``module`` whose collectives are selected, on its
    device. Of several ``requests``, each of which runs the program, those behind the first take as
    long as the region that is slowest, as regions work on different ones at a time. Where something
    ``streams`` from the memory that cores share, an op waits for what its work does not hide.

    Raises ``device-number`` for a device that lacks a number.
    """
    device = module.the_device().watched()
    mesh = module.the_mesh()
    costs = MeshCosts.of_module(replace(module, device=device), mesh).without_limits()
    inside = _in_loops(module.function.body)
    parts = []
    for op, times in runs_of(module):
        cost = _cost(op, costs)
        if streams is not None:
            coming = streams.bytes_of(op) / streams.bytes_per_second(device) * device.clock_hz
            cost += Cost(waits=max(0.0, coming - cost.total))
        if not cost.total:
            continue
        slowest = -(-times // mesh.regions) if id(op) in inside else times
        runs = times + (requests - 1) * slowest
        parts.append(Part(_name(op), runs, cost * runs))
    clock = device.clock_hz
    left_out = (_BETWEEN_REGIONS,) if mesh.regions > 1 else ()
    return Prediction(
        "search",
        "cycles",
        clock,
        tuple(parts),
        inputs_of(costs.device, device.asked),
        left_out=left_out,
    )


def _cost(op: Op, costs: MeshCosts) -> Cost:
    """One run of ``op``, which is a reduction with the algorithm that was chosen for it, or not."""
    if isinstance(op, (ops.AllReduce, ops.Reduce)):
        return costs.sharing.way(costs.reduced(op), op.algo, op.groups).cost
    if isinstance(op, (ops.Repeat, ops.Yield, ops.Return)):
        return NOTHING
    return costs.of(op)


def _name(op: Op) -> str:
    """What an op is called: its kind, algorithm and first result."""
    algo = getattr(op, "algo", "")
    kind = op.NAME.partition(".")[2]
    return " ".join(filter(None, (kind, algo, *(f"%{v.name}" for v in op.results[:1]))))


def _in_loops(body: Block) -> set[int]:
    """The ops of loops over layers, by ``id``."""
    loops = [op for op in body.ops if isinstance(op, ops.Repeat)]
    return {id(op) for loop in loops for region in loop.regions for op in region.walk()}
