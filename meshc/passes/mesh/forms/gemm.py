"""Products of many rows with weights: MeshGEMM, by cyclic shifts of both operands.

Rows of tokens lie over the rows of the mesh and features over its columns, in the result too
(WaferLLM sections 4.1 and 5.3, Fig. 3). ``select-gemm`` chooses how the operands move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import column_splits, has_experts, row_split
from meshc.passes.mesh.forms.contraction import contracted, new_dims, rows_of
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import over_columns
from meshc.support.diagnostics import fail


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """The weights are stored skewed, the left operand is aligned on the mesh. ``gemm_experts``: the
    same with experts over columns, each whole where it lies."""
    left = way.peek(op.operands[0])
    new = [new_dims(way, op, left, way.peek(right)) for right in op.operands[1:]]
    found = [Form("gemm", lambda way: _gemm(way, op))]
    if has_experts(way, new):
        found.append(Form("gemm_experts", lambda way: _gemm(way, op, by_experts=True)))
    return found


def _gemm(way: Lowering, op: graph.Matmul, by_experts: bool = False) -> None:
    rights = [way.env_of(r) for r in op.operands[1:]]
    given = rows_of(way, op)
    left = over_columns(way, given, op)
    contract = contracted(way, op, left, rights)
    down, across = way.mesh.plane
    skew = skew_of(way, rights, op)
    held = tuple(
        Split(s.dim, down, ceil_div(way.problem.extents[s.dim], way.mesh.rows), skew=skew)
        for s in way.restricted(left, contract).splits
    )
    results = []
    for old, right in zip(op.results, rights, strict=True):
        order = way.type_of(right).dims
        columns = column_splits(way, new_dims(way, op, left, right), across, by_experts)
        splits = tuple(s for d in order for s in (*held, *columns) if s.dim == d)
        way.place(right, Layout(splits), op)
        layout = Layout((row_split(way), *columns))
        results.append((old.name, way.summed(tensor_type(old).dims, layout)))
    made = mesh.Gemm(
        [left, *rights],
        contract=contract,
        group=op.group,
        axis=across,
        left_aligned=left is given and _align_input(way, op, left),
    )
    way.env.update(zip(op.results, way.emit(made, *results), strict=True))


def skew_of(way: Lowering, rights: Sequence[Value], op: Op) -> str:
    """The axis that turns the right operands of a product, or nothing."""
    turned = {_aligned_by_host(way, right) for right in rights}
    if len(turned) > 1:
        fail("unsupported-op", "one product with weights and inputs at once", op.span)
    return way.mesh.across if turned == {True} else ""


def _aligned_by_host(way: Lowering, value: Value) -> bool:
    """Whether ``value``, a parameter, is placed skewed: weights, if the setting ``align`` does not
    say ``device``; inputs, if it says ``host``."""
    usual = "device" if value in way.inputs else "host"
    return (way.problem.align or usual) == "host"


def _align_input(way: Lowering, op: graph.Matmul, left: Value) -> bool:
    """Let the host place the left operand skewed, if it may and only this product reads it."""
    problem, given = way.problem, op.operands[0]
    if (
        problem.align != "host"
        or list(problem.used_by(given)) != [op]
        or not problem.is_given(given)
    ):
        return False
    down, across = way.mesh.plane
    splits = way.layout_of(left).splits
    turned = [replace(s, skew=down) if s.axis == across else s for s in splits]
    way.placed[left] = Layout(tuple(turned))
    return True
