"""Programs of several phases: what all levels agree on about the run-time scalar ``phase``.

A tile program that holds both phases of a language model is a block for each, guarded by the value
of ``phase``; where weights move between the two, the transition is a block as well. The host says
with each launch which of them a run is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Sweep
from meshc.ir.views import View

PHASE = "phase"
"""The run-time scalar that says which phase a run is."""
PREFILL, DECODE, TRANSITION = "prefill", "decode", "transition"
PHASES = (PREFILL, DECODE, TRANSITION)
"""Names of phases, by the values of ``phase``."""
CACHED = "cached"
"""The run-time scalar that counts the tokens behind which a chunk of a prompt stands."""


@dataclass(frozen=True)
class PhaseBlock:
    """The block of a phase: its ``name``, ``number``, the statement that guards it, and the
    run-time ``scalars`` that it reads."""

    name: str
    number: int
    block: Sweep
    scalars: tuple[str, ...]

    @property
    def guard(self) -> Cond:
        """That a run is this phase."""
        return guard_of(self.number)


def guard_of(number: int) -> Cond:
    """That a run is the phase with this number."""
    return Cond.eq(Expr.var(PHASE), number)


def phases_of(module: Module) -> tuple[PhaseBlock, ...]:
    """The phases of a tile-level ``module``, in the order of their numbers; none of a program of
    one phase."""
    if PHASE not in module.scalars:
        return ()
    found = []
    for op in module.program.body.ops:
        for number, name in enumerate(PHASES):
            if isinstance(op, Sweep) and op.when == guard_of(number):
                found.append(PhaseBlock(name, number, op, _scalars(module, op)))
    return tuple(sorted(found, key=lambda phase: phase.number))


def guards_of_phases(module: Module) -> Mapping[Op, Cond]:
    """The guard of the phase around each statement; none in a program of one phase."""
    return {
        op: phase.guard
        for phase in phases_of(module)
        for region in phase.block.regions
        for op in region.walk()
    }


def _scalars(module: Module, block: Sweep) -> tuple[str, ...]:
    """The scalars of ``module`` that a phase reads, in the order of the header."""
    used: set[str] = set()
    for region in block.regions:
        for op in region.walk():
            used |= _names(op)
    return tuple(name for name in module.scalars if name in used)


def _names(op: Op) -> set[str]:
    """The names that a statement reads."""
    values: list[Expr | Cond | View] = [*op.views()]
    values += [] if op.when is None else [op.when]
    values += [op.count] if isinstance(op, For) else []
    if isinstance(op, Compute):
        values += [value for value in op.params.values() if isinstance(value, Expr)]
    return {name for value in values for name in value.free_vars}
