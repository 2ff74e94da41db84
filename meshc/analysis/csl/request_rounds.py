"""Requests behind each other in a CSL program, as ``pipeline-requests`` lets them be: the loop
around it, whose rounds have run-time scalars of their own, and the work of a request that is there.

A core keeps what the host tells it for all rounds; when a round begins it takes its scalars from
there, and works out what follows from them alone where the work begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Module
from meshc.ir.ops.tile import For, Sweep, scalars_of_rounds
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Rounds:
    """The ``loop`` over requests and, in its body, the ``work`` for a request that is there."""

    loop: For
    work: Sweep

    @property
    def count(self) -> int:
        """How many rounds there are."""
        return self.loop.count.constant


def rounds_of(module: Module) -> Rounds | None:
    """The rounds of a program; None where all its scalars are told once. Fails with
    ``unsupported-batch`` where rounds that have scalars of their own are not the whole program."""
    if not scalars_of_rounds(module):
        return None
    body = module.program.body.ops
    loop = body[0]
    if len(body) == 1 and isinstance(loop, For) and len(loop.each) == 1:
        there = Cond.ge(Expr.var(loop.each[0]), 0)
        works = [op for op in loop.regions[0].ops if isinstance(op, Sweep) and op.when == there]
        inner = [op for op in loop.regions[0].walk() if isinstance(op, For) and op.each]
        if len(works) == 1 and not inner:
            return Rounds(loop, works[0])
    fail(
        "unsupported-batch",
        "in CSL the requests of a step go one behind another through the whole program",
        help="compile with --batch, or run pipeline-requests on the program of one request",
    )


def told_once(module: Module) -> dict[str, tuple[int, int]]:
    """The run-time scalars that a run has one of, with their bounds."""
    several = scalars_of_rounds(module)
    return {name: bounds for name, bounds in module.scalars.items() if name not in several}
