"""Caches, what loops stream of them, and whose rows of a token lie side by side."""

from __future__ import annotations

from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.values import Value


def streams_of(op: tile.For) -> list[task.Stream]:
    """What a loop over cached tokens streams of caches."""
    return [
        one for one in op.regions[0].ops if isinstance(one, task.Stream) and one.below is not None
    ]


def side_by_side(module: Module) -> dict[Value, tuple[Value, ...]]:
    """For each cache of several that one loop folds and that have no heads, all of them in the
    order of their lanes: first that of the values (latent attention, whose keys are those of all
    caches): one copy brings all that a task folds of a token."""
    found: dict[Value, tuple[Value, ...]] = {}
    for op in module.walk():
        if isinstance(op, tile.For) and (streams := streams_of(op)):
            caches = {one.result: one.view.buffer for one in streams}
            if any(len(one.view.indices) != one.dim + 1 for one in streams):
                continue  # heads
            folds = (
                o.views()[2].buffer
                for o in op.regions[0].ops
                if isinstance(o, tile.Compute) and o.kernel == "gemm" and not o.params["transposed"]
            )
            values = [caches[value] for value in folds if value in caches]
            order = tuple(dict.fromkeys([*values, *caches.values()]))
            if len(order) > 1:
                found |= dict.fromkeys(order, order)
    return found
