"""place-tasks: which block runs which tasks of a phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class PlaceTasks(Pass):
    """Deal the tasks of every phase to blocks that stay on their cores, in even runs.

    ``blocks`` is how many there are, by default one on each core of the device. A block has a run
    of the tasks of a phase, those of its families one behind the other, so that it asks for its
    streams in one order, ahead of the phases that need them.

    Before::

        task.phase {name = y} {

    After::

        task.phase {name = y, blocks = 2} {
    """

    NAME: ClassVar[str] = "place-tasks"
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"given_before"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"ordered", "not_overwritten", "in_cluster"})

    blocks: int = 0

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.blocks < 0:
            fail("bad-pass-option", f"place-tasks: blocks is {self.blocks}, but it is at least 0")
        blocks = self.blocks or module.the_device().cores
        for op in module.walk():
            if isinstance(op, task.Phase):
                op.blocks, op.cluster, op.groups = blocks, 0, 0
            elif isinstance(op, task.Family):
                op.grouped = ""
            elif isinstance(op, task.Meet) and op.kind == task.CLUSTER:
                op.kind = task.COUNTER
        for buffer in module.buffers:
            buffer.cluster = None
        return module
