"""Ops that compute the same from the same operands become one."""

from __future__ import annotations

from meshc.ir.core import Op, Operand
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics

_Key = tuple[type[Op], tuple[Operand, ...], str]
_KEPT = (graph.Return, graph.Yield, graph.Append)


def merge_equal(module: Module, report: Diagnostics) -> None:
    """In each block, use the first of equal ops in the place of later ones, and so of what is
    computed from their results.

    An append stays: each is an entry to its cache. Results of the function keep their names: where
    two are equal, both ops stay.
    """
    rewriter = Rewriter(module)
    outputs = {v for function in module.functions for v in function.body.ops[-1].tensors()}
    changes: dict[Value, Value] = {}
    for block in rewriter.blocks():
        first: dict[_Key, Op] = {}
        for op in list(block.ops):
            op.operands = [changes.get(o, o) if isinstance(o, Value) else o for o in op.operands]
            if op.regions or isinstance(op, _KEPT):
                continue
            known = first.setdefault(_key(op), op)
            named = outputs & set(op.results)
            if known is op or (named and outputs & set(known.results)):
                continue
            block.ops.remove(op)
            _report(op, known, report)
            if named:
                _take_names(known, op)
                outputs |= set(known.results)
            changes.update(zip(op.results, known.results, strict=True))
    rewriter.replace_uses(changes)


def _key(op: Op) -> _Key:
    """Equal for ops of equal results."""
    return type(op), tuple(op.operands), repr(op.attributes())


def _report(op: Op, known: Op, report: Diagnostics) -> None:
    names = ", ".join(map(str, op.results))
    report.remark("computed-once", f"{names} equals {known.results[0]}, computed before", op.span)


def _take_names(known: Op, op: Op) -> None:
    """Call the results of ``known`` as those of ``op``, which is gone."""
    for kept, gone in zip(known.results, op.results, strict=True):
        kept.name = gone.name
