"""Removal of what no result depends on: ops, slices carried into loops, weights."""

from __future__ import annotations

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics

_ENDS = (graph.Return, graph.Yield)


def remove_dead(module: Module, report: Diagnostics) -> None:
    """Remove unused ops, loop operands and weight parameters; inputs and states stay.

    A state that is not used is part of what the phases agree on, and inputs are the interface.
    """
    while _remove_ops(module, report) or _remove_slices(module):
        pass
    used = _used(module)
    for param in list(module.function.params):
        if param.role == "weight" and param.value not in used:
            report.remark("dead-weight", f"weight {param.value} is not used and is dropped")
            module.function.params.remove(param)
            module.paired.pop(param.value.name, None)


def _used(module: Module) -> set[Value]:
    return {value for op in module.walk() for value in op.tensors()}


def _remove_ops(module: Module, report: Diagnostics) -> bool:
    """Remove ops none of whose results is used; whether there were any."""
    used = _used(module)
    changed = False
    for block in Rewriter(module).blocks():
        dead = [op for op in block.ops if _dead(op, used)]
        for op in dead:
            report.remark("dead-op", f"{op.NAME} {op.results[0]} is not used", op.span)
            block.ops.remove(op)
        changed = changed or bool(dead)
    return changed


def _dead(op: Op, used: set[Value]) -> bool:
    return not isinstance(op, _ENDS) and bool(op.results) and not used & set(op.results)


def _remove_slices(module: Module) -> bool:
    """Drop stacked loop operands that the body does not read; whether there were any."""
    used = _used(module)
    changed = False
    for op in module.walk():
        if isinstance(op, graph.Repeat):
            changed = _narrow(op, op.regions[0], used) or changed
    return changed


def _narrow(op: graph.Repeat, body: Block, used: set[Value]) -> bool:
    kept = [i for i, arg in enumerate(body.args) if i < op.carried or arg in used]
    if len(kept) == len(body.args):
        return False
    op.operands = [op.operands[i] for i in kept]
    body.args = [body.args[i] for i in kept]
    return True
