"""Blocks of a rank with the sum over ranks and the residual sum that follow them, as one op."""

from __future__ import annotations

from meshc.ir.clone import clone_module
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def folded(module: Module) -> Module:
    """``module`` with each fused block that gives a part of a sum, the ``all_reduce`` behind it and
    the sum with the residual that the block reads as one fused block, still marked as partial: its
    launches leave the part, and those of the block behind begin with the collective. Raises
    ``cuda-graph`` where something else follows."""
    copy = clone_module(module)
    for block in Rewriter(copy).blocks():
        _fold(block)
    return copy


def _fold(block: Block) -> None:
    kept: list[Op] = []
    rest = list(block.ops)
    while rest:
        op = rest.pop(0)
        kept.append(op)
        if isinstance(op, graph.Fuse) and op.partial:
            total, added = (rest.pop(0) if rest else None for _ in range(2))
            if not _follow(op, total, added, rest):
                fail(
                    "cuda-graph",
                    f"the {op.kernel} of a rank is followed by something else than the sum over "
                    "ranks and its residual",
                    op.span,
                    help="a bias behind the sum is no part of a kernel",
                )
            assert added is not None
            op.results = [added.results[0], *op.results[1:]]
    block.ops = kept


def _follow(op: graph.Fuse, total: Op | None, added: Op | None, rest: list[Op]) -> bool:
    """Whether ``total`` and ``added`` complete what ``op`` gives, and nothing else reads parts."""
    if not isinstance(total, ranks.AllReduce) or not isinstance(added, graph.Add):
        return False
    (part, summed), residual = (op.results[0], total.result), op.operands[0]
    asked: set[object] = {summed, residual}
    others = {value for other in rest for value in _all_tensors(other)}
    return (
        op.takes[0] == "residual"
        and total.operands[0] is part
        and set(added.operands) == asked
        and not others & {part, summed}
    )


def _all_tensors(op: Op) -> list[Value]:
    inner = [value for region in op.regions for other in region.walk() for value in other.tensors()]
    return [*op.tensors(), *inner]
