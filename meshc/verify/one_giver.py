"""one_giver: no element of a buffer is written by two tasks, or twice by one."""

from __future__ import annotations

from itertools import combinations_with_replacement

from meshc.analysis.proofs.isl import find_point
from meshc.analysis.tasks.accesses import OTHER, Access, At, accesses, differ, same_requests
from meshc.ir.affine import Cond
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """No two gives, and no give at two points, have an element in common. Raises ``two-givers``."""
    gives = [a for a in accesses(module) if isinstance(a.op, task.Give)]
    for first, second in combinations_with_replacement(gives, 2):
        if first.buffer is second.buffer:
            _apart(module, first, second)


def _apart(module: Module, first: Access, second: Access) -> None:
    one, other = At(first, module), At(second, module, OTHER)
    apart = differ(one, other) if first is second else Cond.true()
    both = one.touched & other.touched & same_requests(one, other) & apart
    point = find_point(both, first.elements)
    if point is not None:
        givers = task_text(one, point), task_text(other, point)
        fail(
            "two-givers",
            f"{element_text(one, point)} is given twice, by {' and by '.join(givers)}",
            second.op.span,
            help="an element of a buffer is given once; what a loop carries has one for each round",
        )
