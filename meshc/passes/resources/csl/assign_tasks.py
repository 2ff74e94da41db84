"""assign-csl-tasks: an id for each local task of a CSL program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.joined_transfers import Transfers
from meshc.analysis.csl.tasks import free_ids, task_names
from meshc.devices.csl import targets
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates


@dataclass(frozen=True)
class AssignCslTasks(Pass):
    """Give each task that the end of a transfer runs an id that is free on the device.

    A program that waits for transfers returns from its task, and the last end of what it waits for
    runs ``resume``; other tasks join two ends, start the next transfer of a channel or end a turn.
    Ids are those that the device leaves to programs and that are no color in use.

    ``portable``: ids that every device for CSL has.

    Before::

        mesh y = 1, x = 3
        buffer %a ...

    After::

        mesh y = 1, x = 3
        tasks resume = 24, joined_a = 25
        buffer %a ...
    """

    NAME: ClassVar[str] = "assign-csl-tasks"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_tasks"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    portable: bool = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        names = task_names(Transfers(module))
        free = free_ids(module, targets(module.the_device(), self.portable))
        if len(names) > len(free):
            fail(
                "csl-tasks",
                f"the program needs {len(names)} tasks and a core has {len(free)} ids left",
                notes=(violates("R"),),
            )
        module.resources["tasks"] = dict(zip(names, free, strict=False))
        return module
