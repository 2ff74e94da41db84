"""The form of what is relative to its mean: a sum is completed over the axis of the dim."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import graph, mesh
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def centre(way: Lowering, op: Op) -> list[Form]:
    """Each core adds up its own elements, and subtracts the mean of all from them."""
    return only("reduced", _reduced, op)


def _reduced(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Centre)
    value = laid_out(way, way.env_of(op.operands[0]))
    extent, name = way.problem.extents[op.dim], op.result.name
    if op.dim == way.problem.row_dim and extent > 1:
        fail(
            "unsupported-op",
            f"a mean over {op.dim}, the rows of tokens, has no distributed form",
            op.span,
            help="a norm is over a dim of each row",
        )
    total = way.partial_over(mesh.RowSum([value], dim=op.dim), f"{name}.sum")
    total = way.completed(total, value, op.dim, "sum")
    lowered = mesh.Scale([total], factor=-1.0 / extent)
    (mean,) = way.emit(lowered, (f"{name}.mean", way.type_of(total)))
    centred = way.emit_like(mesh.Add([value, mean]), name, value)
    split = way.layout_of(centred).split_of(op.dim)
    if split is not None and split.block * way.mesh.size(split.axis) != extent:
        # Lanes that hold no element are zero again, as sums of squares need them.
        centred = way.emit_like(mesh.KeepLanes([centred], dim=op.dim), name, centred)
    way.env[op.result] = centred
