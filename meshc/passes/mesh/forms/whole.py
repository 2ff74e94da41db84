"""Products whose result every core wants whole: scores of experts, what is cached without heads,
and what has no dim but rows.

``summed``: features lie over an axis, each core multiplies its own with all columns, and a sum over
the axis gives all scores to every core. ``local``: of many rows whose features are whole on every
core of a row nothing is sent.
"""

from __future__ import annotations

from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout
from meshc.passes.mesh.forms.asked_layouts import lies_over, on_axis
from meshc.passes.mesh.forms.contraction import contracted, left_of, new_dims, rows_of
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import move, over_columns


def is_whole(way: Lowering, op: graph.Matmul) -> bool:
    """Whether the right operands add no dims but those of which every core has all."""
    left = way.peek(op.operands[0])
    new = {d for right in op.operands[1:] for d in new_dims(way, op, left, way.peek(right))}
    return new <= way.problem.whole


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """``summed`` over either axis for single rows, over columns for many."""
    across, down = way.mesh.across, way.mesh.down
    if not way.problem.many_rows:
        return [_summed_form(op, axis) for axis in (down, across)]
    left = way.peek(op.operands[0])
    if way.type_of(left).layout is not None and not lies_over(way, left, across):
        return [Form("local", lambda way: _local(way, op)), _summed_form(op, across)]
    return [_summed_form(op, across)]


def _summed_form(op: graph.Matmul, axis: str) -> Form:
    return Form(f"summed_{axis}", lambda way: _summed(way, op, axis))


def _summed(way: Lowering, op: graph.Matmul, axis: str) -> None:
    rights = [way.env_of(r) for r in op.operands[1:]]
    if way.problem.many_rows:
        left = over_columns(way, rows_of(way, op), op)
    else:
        left = left_of(way, op)
        if not lies_over(way, left, axis):
            left = move(way, left, on_axis(way, left, axis), op)
    contract = contracted(way, op, left, rights)
    held = way.restricted(left, contract).splits
    rows = tuple(s for s in way.layout_of(left).splits if s not in held)
    results = []
    for old, right in zip(op.results, rights, strict=True):
        order = way.type_of(right).dims
        way.place(right, Layout(tuple(s for d in order for s in held if s.dim == d)), op)
        results.append((old.name, way.partial(tensor_type(old).dims, rows, axis)))
    made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
    values = way.all_reduce(way.emit(made, *results), axis)
    way.env.update(zip(op.results, values, strict=True))


def _local(way: Lowering, op: graph.Matmul) -> None:
    rights = [way.env_of(r) for r in op.operands[1:]]
    left = rows_of(way, op)
    contract = contracted(way, op, left, rights)
    results = []
    for old, right in zip(op.results, rights, strict=True):
        way.place(right, Layout(), op)
        results.append((old.name, way.summed(tensor_type(old).dims, way.layout_of(left))))
    made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
    way.env.update(zip(op.results, way.emit(made, *results), strict=True))
