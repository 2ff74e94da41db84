"""Products with a matrix for each head, as those that take queries to the latent space of a cache
and weighted latents back to values (DeepSeek-V2, section 2.1.2): each core multiplies the heads
that it has, and nothing is sent."""

from __future__ import annotations

from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout
from meshc.passes.mesh.forms.contraction import left_of, new_dims
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering


def is_by_head(way: Lowering, op: graph.Matmul) -> bool:
    """Whether the product has a matrix for each query head, contracts one dim of which a core has
    all, and adds one."""
    left, heads = way.peek(op.operands[0]), way.tiling.heads
    if heads is None or len(op.operands) != 2 or len(op.contract) != 1:
        return False
    right = way.peek(op.operands[1])
    dims = (heads.query, *op.contract)
    return (
        tuple(d for d in way.type_of(left).dims if d not in ("B", way.problem.row_dim)) == dims
        and {*dims} < {*way.type_of(right).dims}
        and len(new_dims(way, op, left, right)) == 1
        and way.layout_of(left).split_of(op.contract[0]) is None
    )


def forms(op: graph.Matmul) -> list[Form]:
    """``by_head``: the matrices lie where the heads do."""
    return only("by_head", _by_head, op)


def _by_head(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Matmul)
    left, right = left_of(way, op), way.env_of(op.operands[1])
    heads = way.heads().query
    own = tuple(s for s in way.layout_of(left).splits if s.dim == heads)
    way.place(right, Layout(own), op)
    kind = way.summed(tensor_type(op.result).dims, way.layout_of(left))
    made = mesh.Gemv([left, right], contract=op.contract, group=op.group)
    (way.env[op.result],) = way.emit(made, (op.result.name, kind))
