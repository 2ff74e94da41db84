"""The form of softmax: maximum, exponentials and sums; the division waits for who reads it."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.layouts import laid_out
from meshc.passes.mesh.forms.lowering import Lowering, Unnormalised
from meshc.support.diagnostics import fail


def softmax(way: Lowering, op: Op) -> list[Form]:
    """The maximum is completed over the axis that splits the dim, then exponentials are local."""
    return only("deferred", _deferred, op)


def _deferred(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Softmax)
    scores = laid_out(way, way.env_of(op.operands[0]))
    name = op.result.name
    if way.holds_keys(scores) and op.mask != "causal":
        fail(
            "unsupported-op",
            "a softmax over a cache must not see the rows that hold nothing yet",
            op.span,
            help="write softmax(.., mask = causal)",
        )
    if op.mask == "causal" or _has_pads(way, way.type_of(scores), op.dim):
        made = mesh.Mask([scores], dim=op.dim, rows=op.rows, kind=op.mask)
        scores = way.emit_like(made, f"{name}.s", scores)
    top = way.partial_over(mesh.RowMax([scores], dim=op.dim), f"{name}.max")
    top = way.completed(top, scores, op.dim, "max")
    weights = way.emit_like(mesh.ExpSub([scores, top]), name, scores)
    sums = way.partial_over(mesh.RowSum([weights], dim=op.dim), f"{name}.sum")
    way.pending[op.result] = Unnormalised(weights, sums, op.dim)


def _has_pads(way: Lowering, kind: TensorType, dim: str) -> bool:
    """Whether some lanes of ``dim`` hold no element."""
    split = (kind.layout or Layout()).split_of(dim)
    if split is None:
        return False
    whole = split.block * way.mesh.size(split.axis) == way.problem.extents[dim]
    return not whole or (split.kind != "block" and bool(way.problem.source.scalars))
