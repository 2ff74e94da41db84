"""Forms of softmax: maximum, exponentials and sums; the division waits for who reads it."""

from __future__ import annotations

from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering, Unnormalised, sink_share
from meshc.support.diagnostics import fail


def softmax(way: Lowering, op: Op) -> list[Form]:
    """``deferred``: the maximum is completed over the axis that splits the dim, then exponentials
    are local. ``merged``: each core takes its own maximum, and the reduction of the weighted values
    brings them together (the online softmax of Milakov and Gimelshein, 2018)."""
    assert isinstance(op, graph.Softmax)
    found = [Form("deferred", lambda way: _deferred(way, op))]
    if _can_merge(way, op):
        found.append(Form("merged", lambda way: _merged(way, op)))
    return found


def _can_merge(way: Lowering, op: graph.Softmax) -> bool:
    """Whether nothing but a product of single rows with a cache reads the softmax, over cores that
    reduce; each row of the softmax must have its values side by side on a core."""
    readers = way.problem.used_by(op.result)
    product = readers[0] if len(readers) == 1 else None
    if (
        way.problem.many_rows
        or not isinstance(product, graph.Matmul)
        or product.operands[0] is not op.result
        or len(product.operands) != 2
        or product.contract != (op.dim,)
    ):
        return False
    right = product.operands[1]
    rows = tuple(d for d in tensor_type(op.result).dims if d != op.dim)
    split = way.layout_of(way.peek(op.operands[0])).split_of(op.dim)
    return (
        isinstance(right, Value)
        and right is not op.result
        and way.holds_keys(right)
        and not way.problem.is_weight(right)
        and tensor_type(product.result).dims[: len(rows)] == rows
        and split is not None
        and way.mesh.size(split.axis) > 1
    )


def _deferred(way: Lowering, op: graph.Softmax) -> None:
    scores, name = _masked(way, op), op.result.name
    top = way.partial_over(mesh.RowMax([scores], dim=op.dim), f"{name}.max")
    top = way.completed(top, scores, op.dim, "max")
    sink, share = _sink(way, op, top), None
    if sink is not None:
        (top,) = way.emit(mesh.Larger([top, sink]), (top.name, way.type_of(top)))
        share = sink_share(way, sink, top)
    weights = way.emit_like(mesh.ExpSub([scores, top]), name, scores)
    sums = way.partial_over(mesh.RowSum([weights], dim=op.dim), f"{name}.sum")
    way.pending[op.result] = Unnormalised(weights, sums, op.dim, share=share)


def _merged(way: Lowering, op: graph.Softmax) -> None:
    """A core that sees no element takes the least number as its maximum, so that its exponentials
    and their sum are 0; what it has then counts for nothing beside any other core's."""
    scores, name = _masked(way, op), op.result.name
    own = way.partial_over(mesh.RowMax([scores], dim=op.dim), f"{name}.max")
    kind = way.type_of(own)
    made: Op = mesh.AtLeast([own], value=kind.dtype.lowest)
    sink = _sink(way, op, own)
    if sink is not None:
        made = mesh.Larger([own, sink])
    (tops,) = way.emit(made, (own.name, kind))
    weights = way.emit_like(mesh.ExpSub([scores, tops]), name, scores)
    sums = way.partial_over(mesh.RowSum([weights], dim=op.dim), f"{name}.sum")
    way.pending[op.result] = Unnormalised(weights, sums, op.dim, tops, sink=sink)


def _sink(way: Lowering, op: graph.Softmax, tops: Value) -> Value | None:
    """The attention sink of the softmax, if it has one, where the maxima of its rows lie."""
    if len(op.operands) == 1:
        return None
    sink = way.env_of(op.operands[1])
    wanted = way.restricted(tops, way.type_of(sink).dims)
    if not way.is_weight(sink):
        fail("unsupported-op", f"the sink {sink} is no weight", op.span)
    way.place(sink, wanted, op)
    return sink


def _masked(way: Lowering, op: graph.Softmax) -> Value:
    """The scores, minus infinity where a row sees no element."""
    scores = laid_out(way, way.env_of(op.operands[0]))
    if way.holds_keys(scores) and op.mask != "causal":
        fail(
            "unsupported-op",
            "a softmax over a cache must not see the rows that hold nothing yet",
            op.span,
            help="write softmax(.., mask = causal)",
        )
    if op.mask == "causal" or has_pads(way, way.type_of(scores), op.dim):
        made = mesh.Mask(
            [scores],
            dim=op.dim,
            rows=op.rows,
            kind=op.mask,
            window=op.window,
            every=op.every,
            but=op.but,
            after=op.after,
        )
        scores = way.emit_like(made, f"{op.result.name}.s", scores)
    return scores


def has_pads(way: Lowering, kind: TensorType, dim: str) -> bool:
    """Whether some lanes of ``dim`` hold no element."""
    split = (kind.layout or Layout()).split_of(dim)
    if split is None:
        return False
    parts = way.mesh.size(split.axis) // split.copies
    whole = split.block * parts == way.problem.extents[dim]
    return not whole or (split.kind != "block" and bool(way.problem.source.scalars))
