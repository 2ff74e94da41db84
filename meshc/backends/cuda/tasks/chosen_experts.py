"""Choices of experts in a kernel: where they are made, and what they take of a block."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.cuda.blocks import WARPS
from meshc.analysis.tasks.routing import experts_of
from meshc.backends.cuda.tasks.families import Phase
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.spelling import Ranges, spelled
from meshc.backends.cuda.tasks.storage import Storage
from meshc.ir.affine import Expr
from meshc.ir.ops import task
from meshc.ir.values import Value

HEAR = "choice.hear();"
BARRIERS = 2 * 8
"""Bytes of the mbarriers of two choices."""


@dataclass
class Choosing:
    """The choice that holds at a place of the text: by ``gates`` of a round of the loops around.
    There are ``most`` experts at the most to choose of."""

    storage: Storage
    gates: Value | None = None
    most: int = 0

    def made_for(self, phase: Phase, ranges: Ranges) -> str | None:
        """What the workers do in front of a phase; None where it does nothing for experts, or for
        those that are chosen already."""
        found = _gates_of(phase)
        if found is None:
            return None
        family, need, routed = found
        waits = phase.meets == task.TAGS
        value, expert = need.view.buffer, routed.expert
        if value is self.gates:
            return None
        self.gates = value
        zero = Expr.const(0)
        index = [at.substitute({expert: 0}) for at in base(need.view, (zero, zero))]
        experts, _ = experts_of(self.storage.module, family, routed)
        self.most = max(self.most, experts)
        at, stride = self.storage.place(value, index), self.storage.shape(value)[-1]
        name, begin = self.storage.scratch(value), spelled(at, ranges)
        first = name if begin == "0" else f"{name} + {begin}"
        bits = self.storage.roles[value].tags if waits else None
        tag = self.storage.tag(value, index, ranges) if bits else "0"
        kind = f"{bits or 0}, BATCH, WORKERS"
        return f"choice.make<{kind}>({first}, {stride}, {experts}, {tag}, me, 1);"

    def parts(self) -> list[tuple[str, int, str]]:
        """What two choices, which take turns, take of shared memory: name, bytes and note."""
        if not self.most:
            return []
        size = 2 * 4 * (1 + self.most + WARPS)
        return [("CHOSEN", size, "experts that some token is sent to"), ("TOLD", BARRIERS, "")]


def _gates_of(phase: Phase) -> tuple[task.Family, task.Need, task.Routed] | None:
    """What of a phase stands behind gates, if anything does, with its family and their need."""
    for family in phase.families:
        every = list(family.op.regions[0].walk())
        needs = {r: one for one in every if isinstance(one, task.Need) for r in one.results}
        for op in every:
            if isinstance(op, task.Routed):
                return family.op, needs[op.gates.buffer], op
    return None
