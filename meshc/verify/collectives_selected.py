"""collectives_selected: every collective has an algorithm that covers its axis."""

from __future__ import annotations

from math import prod

from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """k_tree groups must reach every core of the axis; a cache append must have a policy."""
    mesh = module.the_mesh()
    for op in module.walk():
        if isinstance(op, ops.AllReduce):
            size = mesh.size(op.axis)
            tree = op.algo == "k_tree" and prod(op.groups) >= size
            if not tree and op.algo != "ring":
                fail(
                    "collective-unselected",
                    f"all_reduce over {op.axis} has algo '{op.algo}' with groups "
                    f"{list(op.groups)} for {size} cores",
                    op.span,
                )
        if isinstance(op, ops.Append) and not op.policy:
            fail("collective-unselected", "a cache append has no policy", op.span)
