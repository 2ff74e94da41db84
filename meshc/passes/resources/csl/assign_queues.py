"""assign-csl-queues: an input and an output queue for each channel of a CSL program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.ends import End, ends_of
from meshc.analysis.csl.queues import rivals
from meshc.analysis.traffic.queues import different_numbers
from meshc.devices.csl import Targets, targets
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates


@dataclass(frozen=True)
class AssignCslQueues(Pass):
    """Give both ends of each channel a queue of the device, in which transfers do not meet.

    Inputs of a core have queues of their own, as have its outputs on a device that binds them to a
    color. Ends that are under way together have queues of different numbers, since a transfer takes
    the microthread with the number of its queue. Inputs take the last queues and outputs the first,
    so that they rarely meet. What ``allocate-routes`` says of queues is replaced: it comes before
    ``schedule-tasks``, which decides what is under way together.

    ``portable``: queues that every device for CSL has.

    Before::

        channel @chain_x_1 ... queue = 2, output_queue = 2}
        channel @cast_x ... queue = 3, output_queue = 2}

    After::

        channel @chain_x_1 ... queue = 7, output_queue = 2}
        channel @cast_x ... queue = 6, output_queue = 2}
    """

    NAME: ClassVar[str] = "assign-csl-queues"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_queues"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    portable: bool = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        goals = targets(module.the_device(), self.portable)
        found = assign_queues(module, goals)
        for channel in module.channels:
            channel.queue = found.get((channel.name, "recv"))
            channel.output_queue = found.get((channel.name, "send"))
        return module


def assign_queues(module: Module, goals: Targets) -> dict[End, int]:
    """A queue for each end that is legal on all of ``goals``. Raises ``csl-queues``."""
    every = list(ends_of(module))
    numbers = {"send": goals.output_queues, "recv": goals.input_queues}
    others = rivals(module, every, bool(goals.bound))
    order = sorted(every, key=lambda end: (-len(others[end]), every.index(end)))
    found = different_numbers(order, others.__getitem__, lambda end, _: numbers[end[1]])
    if found is None:
        names = ", ".join(f"@{name}" for name in dict.fromkeys(name for name, _ in every))
        fail(
            "csl-queues",
            f"a core of {goals} has too few queues for the channels of the program",
            notes=(
                f"channels: {names}",
                "the first queues serve the host; a send and a receive that are under way together "
                "on queues of one number share a microthread",
                violates("R"),
            ),
            help="choose algorithms with fewer channels",
        )
    return found
