"""collectives_selected: every collective has an algorithm that covers its axis."""

from __future__ import annotations

from math import prod

from meshc.analysis.traffic.tracks import folds, in_segments, tree_size
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Groups of a tree must reach every core of the axis, or of a half of it where it is folded,
    each phase some; only an all_reduce over an axis with two like halves
    can be folded, and come back by segments where each half has whole ones; a ring cannot merge
    softmaxes; the rest is that of :func:`check_ahead`."""
    check_ahead(module)
    mesh = module.the_mesh()
    for op in module.walk():
        if isinstance(op, (ops.AllReduce, ops.Reduce)):
            possible = in_segments if op.algo == "segmented" else folds
            folded = op.folded and isinstance(op, ops.AllReduce) and possible(mesh, op.axis)
            size = tree_size(mesh, op.axis, folded)
            idle = size > 1 and prod(op.groups[:-1]) >= size
            tree = (folded or op.algo == "k_tree") and prod(op.groups) >= size and not idle
            ring = op.algo == "ring" and isinstance(op, ops.AllReduce) and op.reduce != "softmax"
            if not tree and not ring:
                fail(
                    "collective-unselected",
                    f"{op.NAME.partition('.')[2]} over {op.axis} has algo '{op.algo}' with groups "
                    f"{list(op.groups)} for {size} cores"
                    + (", of which one is left before the last phase" if idle else ""),
                    op.span,
                )


def check_ahead(module: Module) -> None:
    """What reductions are selected beside, in the queues that it leaves: a dispatch must have an
    algorithm and a cache append a known policy."""
    for op in module.walk():
        if isinstance(op, ops.Dispatch) and not op.algo:
            fail(
                "collective-unselected",
                f"a dispatch over {op.axis} has no algorithm",
                op.span,
                help="run the pass select-dispatch",
            )
        if isinstance(op, ops.Append) and op.policy not in ops.CACHE_POLICIES:
            fail(
                "collective-unselected",
                f"a cache append has no policy '{op.policy}'",
                op.span,
                help=f"it is one of {', '.join(ops.CACHE_POLICIES)}",
            )
