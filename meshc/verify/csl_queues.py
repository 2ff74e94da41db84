"""csl_queues: ends of channels have queues of the device, in which no transfers meet."""

from __future__ import annotations

from meshc.analysis.csl.queues import wrong_queue
from meshc.devices.csl import targets
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Every end that is used has a queue which programs may take; ends that a core cannot tell
    apart, or that ask for one microthread at once, have different ones."""
    wrong = wrong_queue(module, targets(module.the_device()))
    if wrong is not None:
        fail("csl-queues-wrong", wrong, help="the pass assign-csl-queues gives queues")
