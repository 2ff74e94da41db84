"""within_bounds: what tasks need, stream and give lies in its buffer."""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.analysis.tasks.accesses import At, accesses
from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Module
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """No region has an element outside of its buffer. Raises ``task-bounds``."""
    for access in accesses(module):
        at = At(access, module)
        shape = access.op.view.buffer_type.shape
        for name, extent in zip(access.elements, shape, strict=True):
            outside = ~Cond.between(0, Expr.var(name), extent)
            point = find_point(access.touched & outside, access.elements)
            if point is not None:
                fail(
                    "task-bounds",
                    f"{access.words} leaves {access.buffer} : {access.buffer.type}",
                    access.op.span,
                    notes=[f"{task_text(at, point)} has {element_text(at, point)}"],
                )
