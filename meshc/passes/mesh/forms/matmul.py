"""Forms of products: which file has them depends on what is multiplied.

A product of single rows with weights flips the axis (``gemv``); one of many rows shifts both
operands (``gemm``, ``gemm_t``) or leaves the weights where they are (``tensor_parallel``); products
with a cache are attention's (``attention``), scores of experts go to every core (``whole``),
what has a matrix for each head is multiplied where the heads are (``by_head``), and rows go to
the experts that gates send them to (``dispatch``).
"""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import graph
from meshc.passes.mesh.forms import (
    attention,
    by_head,
    dispatch,
    gemm,
    gemm_t,
    gemv,
    tensor_parallel,
    whole,
)
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def matmul(way: Lowering, op: Op) -> list[Form]:
    """The forms that what is multiplied leaves open; fails with ``unsupported-op`` for none."""
    assert isinstance(op, graph.Matmul)
    if op.operands[0] in way.at_experts:
        return dispatch.combining(way, op)
    rights = [way.peek(r) for r in op.operands[1:]]
    if way.problem.many_rows and len(rights) == 1 and gemm_t.is_transposed(way, op, rights[0]):
        return gemm_t.forms(way, op)
    if all(map(way.is_weight, rights)) and by_head.is_by_head(way, op):
        return by_head.forms(op)
    if all(map(way.is_weight, rights)) and whole.is_whole(way, op):
        return whole.forms(way, op)
    if all(map(way.is_weight, rights)):
        sent = dispatch.forms(way, op)
        if not way.problem.many_rows:
            return [*gemv.forms(way, op), *sent]
        return [*gemm.forms(way, op), *tensor_parallel.forms(way, op), *sent]
    if len(rights) == 1 and (way.holds_keys(rights[0]) or not way.problem.many_rows):
        return attention.forms(way, op)
    if not way.problem.many_rows:
        fail("unsupported-op", "a product of weights and activations at once", op.span)
    fail(
        "unsupported-op",
        "this product of activations has no distributed form",
        op.span,
        help="the right side of a product is a param, an input or a cache",
    )
