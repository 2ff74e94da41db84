"""Products with constants: those by one vanish, those in a row become one."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics


def fold_scales(module: Module, report: Diagnostics) -> None:
    """Merge each scale with the scale it reads, then remove scales by one."""
    rewriter = Rewriter(module)
    makers: dict[Value, Op] = {}
    for op in list(module.walk()):
        if isinstance(op, graph.Scale):
            inner = makers.get(op.tensors()[0])
            if isinstance(inner, graph.Scale):
                op.operands = list(inner.operands)
                op.factor *= inner.factor
                report.remark("scales-merged", f"two scales in a row become {op.result}", op.span)
        makers.update((result, op) for result in op.results)
    for op in list(module.walk()):
        if isinstance(op, graph.Scale) and op.factor == 1.0:
            report.remark("scale-by-one", f"{op.result} is a product with one", op.span)
            rewriter.replace_op(op, op.tensors())
