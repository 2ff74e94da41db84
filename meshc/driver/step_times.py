"""The predicted time of a decode step of tasks, in words."""

from __future__ import annotations

from meshc.cost.tasks.steps import step_time
from meshc.ir.batch import POSITION
from meshc.ir.module import Module
from meshc.support.diagnostics import MeshcError

_LIMITS = {
    "memory": "waiting for memory",
    "computing": "computing",
    "meeting": "in meetings",
    "idle": "waiting for the last block of a phase",
}


def predicted(module: Module) -> str:
    """What the step of ``module``, of the task level, takes with full caches, as the event model
    predicts; nothing for a device that lacks a number for it, or one without a position."""
    if POSITION not in module.scalars:
        return ""
    _, last = module.scalars[POSITION]
    try:
        found = step_time(module, {POSITION: last})
    except MeshcError:
        return ""
    return (
        f"predicted {1e6 * found.seconds:.0f} us with {last} tokens before it, {found.ratio:.2f} "
        f"times what its {found.bytes} bytes take at {found.rate / 1e9:.0f} GB/s; most of it "
        f"{_LIMITS[found.limit]}"
    )
