"""Products of many rows whose weights stay where they are: tensor parallelism (Megatron-LM,
Shoeybi et al. 2019, section 3).

Rows of tokens lie over rows of the mesh, each of which has all weights. ``column_parallel``: every
core of a row has all features of its tokens and some columns of the weight, so it computes some of
the new features and sends nothing. ``row_parallel``: features lie over columns of the mesh and the
rows of the weight with them, so that a sum over the cores of a row gives each all new features. One
behind the other they need a single reduction. ``expert_parallel`` is ``column_parallel`` with whole
experts on the cores of a row.
"""

from __future__ import annotations

from math import prod

from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout
from meshc.passes.mesh.forms.asked_layouts import column_splits, has_experts, has_heads, row_split
from meshc.passes.mesh.forms.contraction import contracted, new_dims, rows_of
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import over_columns, with_whole_features
from meshc.support.diagnostics import fail


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """Both, where a row has several cores. Heads lie over factors of the columns: what makes them
    is ``column_parallel``, what reads them is not."""
    if way.mesh.columns == 1:
        return []
    pinned = not way.problem.holds_copies
    left = way.peek(op.operands[0])
    new = [new_dims(way, op, left, way.peek(right)) for right in op.operands[1:]]
    found = []
    if all(way.mesh.whole(s.axis) == s.axis for s in way.layout_of(left).splits):
        found.append(Form("column_parallel", lambda way: column_parallel(way, op), pinned))
        if has_experts(way, new):
            found.append(Form("expert_parallel", lambda way: _by_experts(way, op), pinned))
    if not any(has_heads(way, dims) for dims in new):
        found.append(Form("row_parallel", lambda way: _row_parallel(way, op), pinned))
    return found


def column_parallel(way: Lowering, op: graph.Matmul, by_experts: bool = False) -> None:
    """Whole features times some columns of the weights on each core of a row."""
    rights = [way.env_of(r) for r in op.operands[1:]]
    left = with_whole_features(way, rows_of(way, op), op)
    contract = contracted(way, op, left, rights)
    results = []
    for old, right in zip(op.results, rights, strict=True):
        new = new_dims(way, op, left, right)
        columns = column_splits(way, new, way.mesh.across, by_experts)
        order = way.type_of(right).dims
        way.place(right, Layout(tuple(s for d in order for s in columns if s.dim == d)), op)
        layout = Layout((row_split(way), *columns))
        results.append((old.name, way.summed(tensor_type(old).dims, layout)))
    made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
    way.env.update(zip(op.results, way.emit(made, *results), strict=True))


def _by_experts(way: Lowering, op: graph.Matmul) -> None:
    column_parallel(way, op, by_experts=True)


def _row_parallel(way: Lowering, op: graph.Matmul) -> None:
    across = way.mesh.across
    rights = [way.env_of(r) for r in op.operands[1:]]
    left = over_columns(way, rows_of(way, op), op)
    contract = contracted(way, op, left, rights)
    held = way.restricted(left, contract).splits
    if prod(way.mesh.size(s.axis) for s in held) != way.mesh.columns:
        words = f"'{left.name}' lies as {way.type_of(left).layout}, of which some cores of a row "
        fail("unsupported-layout", words + "have the same", op.span)
    results = []
    for old, right in zip(op.results, rights, strict=True):
        order = way.type_of(right).dims
        way.place(right, Layout(tuple(s for d in order for s in held if s.dim == d)), op)
        kind = way.partial(tensor_type(old).dims, (row_split(way),), across)
        results.append((old.name, kind))
    made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
    values = way.all_reduce(way.emit(made, *results), across)
    way.env.update(zip(op.results, values, strict=True))
