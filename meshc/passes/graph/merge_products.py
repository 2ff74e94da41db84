"""Products of one left operand with several weights become one op."""

from __future__ import annotations

from meshc.analysis.expert_dims import whole_dims
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.module import Module, Param
from meshc.ir.ops import graph
from meshc.ir.origins import origins
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics

_Key = tuple[Operand, tuple[str, ...], tuple[str, ...]]


def merge_products(module: Module, report: Diagnostics) -> None:
    """In each block, merge later products into the first with the same left side.

    Weights exist before any op, so the merged op may stand where the first one stood. Scores of
    experts, what is cached without heads, and products that leave no dim but those of the rows are
    computed by themselves: every core wants them whole.
    """
    known, whole = origins(module), whole_dims(module)
    for block in Rewriter(module).blocks():
        first: dict[_Key, graph.Matmul] = {}
        for op in list(block.ops):
            if not isinstance(op, graph.Matmul) or not _by_weights(op, known):
                continue
            if _is_whole(op, whole):
                continue
            key = (op.operands[0], op.contract, op.group)
            if key in first:
                _absorb(block, first[key], op, report)
            else:
                first[key] = op


def _is_whole(op: graph.Matmul, whole: frozenset[str]) -> bool:
    """Whether some right operand adds no dims but those of which every core has all."""
    left = {*tensor_type(op.operands[0]).dims}
    return any({*tensor_type(right).dims} - left <= whole for right in op.operands[1:])


def _by_weights(op: Op, known: dict[Value, Param]) -> bool:
    rights = [known.get(value) for value in op.tensors()[1:]]
    return all(param is not None and param.role == "weight" for param in rights)


def _absorb(block: Block, into: graph.Matmul, op: graph.Matmul, report: Diagnostics) -> None:
    names = ", ".join(map(str, op.results))
    first = into.results[0]
    into.operands += op.operands[1:]
    into.results += op.results
    block.ops.remove(op)
    report.remark("products-merged", f"{names} and {first} share one product", op.span)
