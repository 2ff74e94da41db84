"""given_before: what a task needs is given by tasks of earlier phases, all of it."""

from __future__ import annotations

from meshc.analysis.proofs.isl import Point, uncovered_point
from meshc.analysis.tasks.accesses import OTHER, At, accesses, same_requests
from meshc.analysis.tasks.order import behind
from meshc.ir.affine import Cond
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """Each element that is needed is given, by a task of a phase before. Raises ``not-given``."""
    every = [*accesses(module)]
    gives = [a for a in every if isinstance(a.op, task.Give)]
    for need in every:
        if isinstance(need.op, task.Need):
            own = [At(give, module, OTHER) for give in gives if give.buffer is need.buffer]
            _given(At(need, module), own)


def _given(need: At, gives: list[At]) -> None:
    anywhere = _missing(need, gives, ordered=False)
    point = anywhere or _missing(need, gives, ordered=True)
    if point is not None:
        words = "nobody gives" if anywhere else "no earlier phase gives"
        fail(
            "not-given",
            f"{need.access.words} needs {element_text(need, point)}, which {words}",
            need.access.op.span,
            notes=[f"in {task_text(need, point)}"],
        )


def _missing(need: At, gives: list[At], ordered: bool) -> Point | None:
    """An element that is needed and not given, or not before."""
    given = Cond.any(
        give.touched & same_requests(need, give) & (behind(need, give) if ordered else Cond.true())
        for give in gives
    )
    hidden = sorted({name for give in gives for name in give.names})
    return uncovered_point(need.touched, given, hidden)
