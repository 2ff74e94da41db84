"""Products of many rows with a turned matrix: dist-GEMM-T (WaferLLM section 5.4).

Rows of the right operand lie over rows of the mesh and move along them; the result's new dim lies
over columns, skewed. Nothing is transposed.
"""

from __future__ import annotations

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import row_split
from meshc.passes.mesh.forms.contraction import contracted, left_of
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.gemm import skew_of
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import over_columns


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """The right operand moves along rows, the sums along columns."""
    return only("gemm_t", _gemm_t, op)


def is_transposed(way: Lowering, op: graph.Matmul, right: Value) -> bool:
    """Whether the product is dist-GEMM-T: of an input that the model transposes, or of any if the
    setting ``gemm`` says so; the result must leave main as it is."""
    wanted = way.problem.gemm
    dims = tensor_type(right).dims
    new = [d for d in dims if d not in op.contract]
    free = right in way.inputs and len(new) == 1 and way.problem.is_returned(op.result)
    return free and (wanted == "transposed" or (wanted == "auto" and dims[-1] in op.contract))


def _gemm_t(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Matmul)
    right = way.env_of(op.operands[1])
    left = over_columns(way, left_of(way, op), op)
    contract = contracted(way, op, left, [right])
    order = way.type_of(right).dims
    (new,) = (d for d in order if d not in contract)
    extent, skew = way.problem.extents[new], skew_of(way, [right], op)
    down, across = way.mesh.plane
    rows = Split(new, down, ceil_div(extent, way.mesh.rows), skew=skew)
    held = (*way.restricted(left, contract).splits, rows)
    way.place(right, Layout(tuple(s for d in order for s in held if s.dim == d)), op)
    columns = Split(new, across, ceil_div(extent, way.mesh.columns), skew=down)
    kind = way.summed(tensor_type(op.result).dims, Layout((row_split(way), columns)))
    made = mesh.GemmT([left, right], contract=contract, group=op.group, axis=across)
    (way.env[op.result],) = way.emit(made, (op.result.name, kind))
