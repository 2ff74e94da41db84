"""What products of weights have in common: which dims are contracted, and which are new."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def contracted(
    way: Lowering, op: graph.Matmul, left: Value, rights: Sequence[Value]
) -> tuple[str, ...]:
    """The dims that a product of ``left`` with matrices contracts, in the order in which a core
    holds them: all dims of ``left`` but the rows of tokens."""
    dims = way.type_of(left).dims
    contract = tuple(d for d in dims if d in op.contract)
    rows = {"B", way.problem.row_dim}
    kept = [d for d in dims if d not in contract and d not in rows]
    others = [d for d in dims if d not in contract and (d != "B" or way.problem.extents[d] > 1)]
    shared = [d for d in others if any(d in way.type_of(r).dims for r in rights)]
    if kept or shared or rows & set(contract):
        what = f"{', '.join(contract)} of {left} [{', '.join(dims)}]"
        if rows & set(contract):
            why = "which are its rows"
        elif shared:
            why = f"and has a matrix for each {', '.join(shared)}"
        else:
            why = f"and keeps {', '.join(kept)}"
        fail(
            "unsupported-op",
            f"this product contracts {what}, {why}: that has no distributed form",
            op.span,
            help="products contract all dims of the left side but B and the rows",
        )
    if way.layout_of(left).repeats(contract):
        kind = way.type_of(left)
        fail("unsupported-layout", f"cores share parts of {left}: {kind.layout}", op.span)
    return contract


def left_of(way: Lowering, op: graph.Matmul) -> Value:
    """The left operand of a product, in the type of activations."""
    return way.rounded(laid_out(way, way.env_of(op.operands[0])))


def rows_of(way: Lowering, op: graph.Matmul) -> Value:
    """The left operand of a product of many rows; fails with ``unsupported-op`` without any."""
    left, rows = left_of(way, op), way.problem.row_dim
    if rows not in way.type_of(left).dims:
        fail(
            "unsupported-op",
            f"the left side of this product has no rows {rows}, of which there are "
            f"{way.problem.extents[rows]}",
            op.span,
            help="multiply what has rows of tokens with params",
        )
    return left


def new_dims(way: Lowering, op: graph.Matmul, left: Value, right: Value) -> tuple[str, ...]:
    """Dims that the right operand adds."""
    old = {*way.type_of(left).dims, *op.contract}
    return tuple(d for d in way.type_of(right).dims if d not in old)
