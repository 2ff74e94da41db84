"""What the statements of a program take: the prices by which clocks are moved on.

Those of the machine are read off the tree that is emitted (``kernels/statement_cycles.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from meshc.analysis.csl import instruction_costs as costs
from meshc.analysis.csl.loop_cycles import around
from meshc.analysis.csl.strided_windows import Window
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.spelling.expressions import condition
from meshc.backends.csl.timing.cases import Cases
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, IntLike
from meshc.ir.ops.tile import Compute, For


@dataclass(frozen=True)
class Fabric:
    """Cycles of what happens between cores: a ``hop``, the ``ramps`` at both ends of a way, the
    ``start`` of a transfer's operation, of one that a task has ``awaited`` from the first word on,
    and a ``relay``; picking a ``task``, a task that joins two ends and the one that goes on, and
    ending a turn."""

    hop: int
    ramps: int = 0
    start: int = 0
    awaited: int = 0
    relay: int = 0
    task: int = 0
    join: int = 0
    resume: int = 0
    handover: int = 0


class Prices:
    """Those of emitted programs on their device."""

    def __init__(self, kernels: Kernels, cases: Cases) -> None:
        self.kernels, self._cases = kernels, cases
        found = kernels.costs
        self.fabric = Fabric(
            hop=found.hop,
            ramps=2 * found.ramp,
            start=costs.FABRIC,
            awaited=found.awaited,
            relay=costs.RELAY,
            task=found.task,
            join=found.task + costs.JOIN,
            resume=found.task + costs.RESUME,
            handover=found.task + costs.walked(2),  # from the end to its control wavelets
        )
        self.call = costs.CALLED
        self.effect = costs.EFFECT
        # Before the work of one request.
        self.request, _ = kernels.cycles_of(kernels.rotary.at_round)

    def begin(self, values: Mapping[str, IntLike]) -> int:
        """From the time stamp at the start to the first statement, for a run of these scalars."""
        at_start = self.kernels.rotary.at_start.values()
        told = [e.setter for e in at_start if e.when is None or e.when.evaluate(values)]
        return costs.FRAME + self.kernels.cycles_of(told)[0]

    def kernel(self, op: Compute, local: Collection[str]) -> tuple[int, int]:
        """A kernel, and the vector steps among its cycles, in which transfers of its core stand
        still; ``local`` names need no load."""
        return self.kernels.work(op, local)

    def transfer(self, here: Window, combines: bool, relays: bool, local: Collection[str]) -> int:
        """A transfer before its operation starts: where what it moves ``here`` lies."""
        address = self.address(here, local)
        in_memory = [here, here] if combines or relays else [here]
        placed = costs.setup(in_memory) - costs.OPERATION + costs.DESCRIPTOR
        return placed + (2 * address if combines else address)

    def test(self, when: Cond, local: Collection[str]) -> int:
        """A guard that is decided when the program runs."""
        test = condition(when, self.kernels.descriptors.spell)
        return self.kernels.cycles_of([csl.when(test, [])], local)[0]

    def address(self, here: Window, local: Collection[str]) -> int:
        """A descriptor of what lies ``here``: nothing where it never moves and has one length."""
        there = csl.const("there", self.kernels.descriptors.memory(here))
        return self.kernels.cycles_of([there], local)[0]

    def round(self, op: For, rounds: int, in_cases: bool) -> int:
        """One of so many ``rounds`` of a loop, the choice of the next case apart."""
        each = costs.LOOP_OF_CASES if in_cases else around(op, rounds)
        return each + costs.TAKEN * len(op.each)

    def switched(self, number: int) -> int:
        """Going to a case of the program."""
        return self._cases.switched(number)
