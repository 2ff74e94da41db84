"""Forms of RMSNorm."""

from __future__ import annotations

from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering, Unscaled
from meshc.support.diagnostics import fail


def rms_norm(way: Lowering, op: Op) -> list[Form]:
    """``reduced``: the sum of squares is completed over the axis that splits the dim, or all that
    the norm is over, then all is scaled. ``deferred``: the scale waits
    for the product behind the norm."""
    assert isinstance(op, graph.RmsNorm)
    found = [Form("reduced", lambda way: _reduced(way, op))]
    if _can_wait(way, op):
        found.append(Form("deferred", lambda way: _deferred(way, op)))
    return found


def _can_wait(way: Lowering, op: graph.RmsNorm) -> bool:
    """Whether nothing but a product of single rows with weights reads the norm, over cores that
    reduce; values that are not normalised need the range of f32 exponents, which f16 lacks."""
    readers = way.problem.used_by(op.result)
    product = readers[0] if len(readers) == 1 else None
    split = way.layout_of(way.peek(op.operands[0])).split_of(op.dim)
    return (
        isinstance(product, graph.Matmul)
        and not op.also
        and product.operands[0] is op.result
        and op.result not in product.operands[1:]
        and product.contract == (op.dim,)
        and all(way.problem.is_weight(right) for right in product.operands[1:])
        and split is not None
        and way.mesh.size(split.axis) > 1
        and not way.problem.many_rows
        and way.problem.dtype is not DType.F16
    )


def _squares(way: Lowering, op: graph.RmsNorm) -> tuple[Value, Value, Value]:
    """What is normalised, its sum of squares on each core, and the gain, laid out beside it."""
    value, gain = laid_out(way, way.env_of(op.operands[0])), way.env_of(op.operands[1])
    rows = way.problem.row_dim
    if rows in (op.dim, *op.also) and way.problem.extents[rows] > 1:
        fail(
            "unsupported-op",
            f"a norm over {rows}, the rows of tokens, has no distributed form",
            op.span,
            help="a norm is over a dim of each row",
        )
    squares = mesh.SquareSum([value], dim=op.dim, also=op.also)
    return value, way.partial_over(squares, f"{op.result.name}.ss"), gain


def _reduced(way: Lowering, op: graph.RmsNorm) -> None:
    value, total, gain = _squares(way, op)
    for axis in way.layout_of(total).partial:
        (total,) = way.all_reduce([total], axis)
    way.place(gain, way.restricted(value, tensor_type(gain).dims), op)
    scaled = mesh.RmsScale([value, total, gain], dim=op.dim, also=op.also, eps=op.eps)
    way.env[op.result] = way.emit_like(scaled, op.result.name, value)


def _deferred(way: Lowering, op: graph.RmsNorm) -> None:
    value, total, gain = _squares(way, op)
    way.place(gain, way.restricted(value, tensor_type(gain).dims), op)
    gained = way.emit_like(mesh.Mul([value, gain]), op.result.name, value)
    way.pending[op.result] = Unscaled(gained, total, op.dim, op.eps)
