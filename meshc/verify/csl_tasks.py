"""csl_tasks: each local task of a CSL program has an id of its own that is free on the device."""

from __future__ import annotations

from meshc.analysis.csl.tasks import wrong_task
from meshc.devices.csl import targets
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """The tasks that ends of transfers run have ids which programs may take, no two the same, and
    none that of a color in use."""
    wrong = wrong_task(module, targets(module.the_device()))
    if wrong is not None:
        fail("csl-tasks-wrong", wrong, help="the pass assign-csl-tasks gives ids")
