"""Facts of what a CSL program takes of a core, such as csl_memory: that no two parts share it."""

from __future__ import annotations

from meshc.analysis.csl.memory import wrong_memory
from meshc.analysis.csl.queues import wrong_queue
from meshc.analysis.csl.sum_registers import wrong_register
from meshc.analysis.csl.tasks import wrong_task
from meshc.analysis.csl.words import wrong_words
from meshc.devices.csl import targets
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def memory(module: Module) -> None:
    """No two buffers overlap, each is aligned or one element late, and scratch is as large as the
    kernel that needs the most of it."""
    _judge("csl-memory-wrong", wrong_memory(module), "plan-csl-memory gives memory")


def queues(module: Module) -> None:
    """Every end that is used has a queue which programs may take; ends that a core cannot tell
    apart, or that ask for one microthread at once, have different ones."""
    wrong = wrong_queue(module, targets(module.the_device()))
    _judge("csl-queues-wrong", wrong, "assign-csl-queues gives queues")


def registers(module: Module) -> None:
    """Registers of sums are those that products may take, those that are loaded before the start
    hold one row at one place, and no other call says any."""
    _judge("csl-registers-wrong", wrong_register(module), "assign-csl-registers gives registers")


def tasks(module: Module) -> None:
    """The tasks that ends of transfers run have ids which programs may take, no two the same, and
    none that of a color in use."""
    wrong = wrong_task(module, targets(module.the_device()))
    _judge("csl-tasks-wrong", wrong, "assign-csl-tasks gives ids")


def words(module: Module) -> None:
    """Tables of angles and turns, and the words of state by what they are for, are those that the
    program needs."""
    _judge("csl-words-wrong", wrong_words(module), "plan-csl-words counts them")


def _judge(code: str, wrong: str | None, mended: str) -> None:
    """Fail where something is ``wrong``; a pass has ``mended`` it."""
    if wrong is not None:
        fail(code, wrong, help=f"the pass {mended}")
