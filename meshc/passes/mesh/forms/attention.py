"""Products with a cache: scores of cached keys, and cached values weighted by a softmax.

Of single rows each core multiplies with the slots it has, and the sums are completed; of many rows
keys move along rows of the mesh and sums inside segments (dist-GEMM-T, WaferLLM section 5.4), which
leaves the scores skewed as the product with the values wants them.
"""

from __future__ import annotations

from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import head_splits, row_split
from meshc.passes.mesh.forms.contraction import left_of
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering, Unnormalised
from meshc.passes.mesh.forms.relayouts import move
from meshc.support.diagnostics import fail


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """``slots``: single rows, every core against the slots it holds. ``scores`` and ``values``:
    many rows."""
    if not way.problem.many_rows:
        return [Form("slots", lambda way: _slots(way, op))]
    if way.holds_keys(way.peek(op.operands[0])):
        return [Form("values", lambda way: _values(way, op))]
    return [Form("scores", lambda way: _scores(way, op))]


def unnormalised(way: Lowering, op: graph.Matmul, right: Value) -> Unnormalised | None:
    """The softmax whose division can wait until cached values are weighted: the left side of
    ``op``, over the dim that is contracted, if nothing else reads it."""
    left = op.operands[0]
    alone = len(way.problem.used_by(left)) == 1 and way.holds_keys(right)
    waiting = way.pending.get(left) if alone and isinstance(left, Value) else None
    if not isinstance(left, Value) or not isinstance(waiting, Unnormalised):
        return None
    if waiting.dim not in op.contract:
        return None
    del way.pending[left]
    return waiting


def _slots(way: Lowering, op: graph.Matmul) -> None:
    right = way.env_of(op.operands[1])
    soft = unnormalised(way, op, right)
    left = soft.value if soft else left_of(way, op)
    dims, mine = tensor_type(op.result).dims, way.type_of(left).dims
    theirs = way.layout_of(right).splits
    if soft is None and not way.holds_keys(right):
        left = _beside(way, op, left, right)
    new = [s for s in theirs if s.dim in dims and s.dim not in mine]
    kept = [s for s in way.layout_of(left).splits if s.dim not in op.contract]
    splits = tuple(s for d in dims for s in (*kept, *new) if s.dim == d)
    axes = {s.axis for s in theirs if s.dim in op.contract}
    made = mesh.Gemv([left, right], contract=op.contract, group=op.group)
    if not axes and way.holds_keys(right):  # a core has all lanes of its keys
        kind = way.summed(dims, Layout(splits))
        (way.env[op.result],) = way.emit(made, (op.result.name, kind))
        return
    if len(axes) != 1:
        fail("unsupported-op", "this product of activations has no distributed form", op.span)
    (axis,) = axes
    (value,) = way.emit(made, (op.result.name, way.partial(dims, splits, axis)))
    if soft is None:
        (way.env[op.result],) = way.all_reduce([value], axis)
        return
    if soft.tops is None:
        value, sums = way.all_reduce([value, soft.sums], axis)
        sums = soft.with_sink(way, sums)
    else:
        value, sums, tops = way.all_reduce([value, soft.sums, soft.tops], axis, "softmax")
        sums = soft.with_sink(way, sums, tops)
    way.env[op.result] = way.emit_like(mesh.Div([value, sums]), op.result.name, value)


def _beside(way: Lowering, op: graph.Matmul, left: Value, right: Value) -> Value:
    """``left`` where ``right``, which was computed, has the lanes of their common dims."""
    common = [d for d in way.type_of(left).dims if d in way.type_of(right).dims]
    held = way.restricted(right, common).splits
    if way.restricted(left, common).splits == held:
        return left
    kept = way.restricted(left, [d for d in way.type_of(left).dims if d not in common]).splits
    return move(way, left, Layout((*kept, *held)), op)


def _scores(way: Lowering, op: graph.Matmul) -> None:
    right = way.env_of(op.operands[1])
    left = left_of(way, op)
    heads, tiling = way.heads(), way.tiling
    wanted = head_splits(way, way.type_of(left).dims)
    if {*wanted} != {s for s in way.layout_of(left).splits if s.dim != way.problem.row_dim}:
        fail("unsupported-layout", f"queries lie as {way.type_of(left).layout}", op.span)
    kept = way.restricted(left, (way.problem.row_dim, heads.query)).splits
    slots = tiling.chunks_x * (tiling.key_lanes // tiling.chunks_y)
    keys = Split(heads.keys, way.mesh.inner, slots, "cyclic", skew=way.mesh.down)
    made = mesh.GemmT([left, right], contract=op.contract, group=op.group, axis=way.mesh.inner)
    kind = way.summed(tensor_type(op.result).dims, Layout((*kept, keys)))
    (way.env[op.result],) = way.emit(made, (op.result.name, kind))


def _values(way: Lowering, op: graph.Matmul) -> None:
    """The division by the softmax's sums waits for the weighted values."""
    right = way.env_of(op.operands[1])
    soft = unnormalised(way, op, right)
    left = soft.value if soft else left_of(way, op)
    heads, dims = way.heads(), tensor_type(op.result).dims
    if (heads.query if heads.headless else heads.lane) not in dims or heads.keys not in op.contract:
        fail("unsupported-op", "this product with a cache is none of attention", op.span)
    sums = None
    if soft is not None:
        sums = soft.with_sink(way, way.completed(soft.sums, left, soft.dim, "sum"))
    made = mesh.Gemm(
        [left, right],
        contract=op.contract,
        group=op.group,
        axis=way.mesh.inner,
        left_aligned=True,
    )
    layout = Layout((row_split(way), *head_splits(way, dims)))
    (value,) = way.emit(made, (op.result.name, way.summed(dims, layout)))
    if sums is not None:
        value = way.emit_like(mesh.Div([value, sums]), op.result.name, value)
    way.env[op.result] = value
