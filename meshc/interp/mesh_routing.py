"""What ops of the mesh level do to rows that gates send to experts, on the shards of every core."""

from __future__ import annotations

import numpy as np

from meshc.interp.mesh_state import Shards, dims_of, meaning
from meshc.interp.named import Array, aligned, contracted
from meshc.ir.core import Operand, tensor_type
from meshc.ir.ops import mesh


@meaning(mesh.Dispatch)
def _dispatch(shards: Shards, op: mesh.Dispatch) -> list[Array]:
    """Every core gets what the layout of the results gives it, wherever it lay before."""
    x, gates = (shards.gathered(operand, op) for operand in op.operands)
    sent, routes = op.results
    dims = tensor_type(sent).dims
    row = aligned(x, tensor_type(op.operands[0]).dims, dims)
    routed = aligned(gates != 0, tensor_type(op.operands[1]).dims, dims)
    places = np.where(routed, row, 0)
    return [shards.sharding(sent).scatter(places), shards.sharding(routes).scatter(gates)]


@meaning(mesh.ExpertGemv)
def _expert_gemv(shards: Shards, op: mesh.ExpertGemv) -> list[Array]:
    """The products of each expert that some row of a core is sent to; what the others hold is not
    read."""
    pairs = zip(op.operands[2:], op.results, strict=True)
    return [_product(shards, op, right, value) for right, value in pairs]


def _product(shards: Shards, op: mesh.ExpertGemv, right: Operand, value: Operand) -> Array:
    sent, routes = op.operands[:2]
    routed, dims, wanted = shards.of(routes) != 0, dims_of(routes), dims_of(value)
    rows = tuple(i for i, dim in enumerate(dims) if i and dim != op.dim)
    result = np.zeros(shards.sharding(value).shape, shards.of(sent).dtype)
    for core, expert in np.argwhere(routed.any(rows)):

        def at(
            lanes: Array, dims: tuple[str, ...], core: int = core, expert: int = expert
        ) -> Array:
            return lanes[core : core + 1].take([expert], dims.index(op.dim))

        left, matrix = (at(shards.of(o), dims_of(o)) for o in (sent, right))
        product = contracted(left, dims_of(sent), matrix, dims_of(right), op.contract, wanted)
        kept = np.where(aligned(at(routed, dims), dims, wanted), product, 0)
        place = [slice(None)] * result.ndim
        place[wanted.index(op.dim)] = slice(expert, expert + 1)
        result[core : core + 1][tuple(place)] = kept
    return result


@meaning(mesh.Combine)
def _combine(shards: Shards, op: mesh.Combine) -> list[Array]:
    """The sum over a core's own experts."""
    values, routes = op.operands
    gates = aligned(shards.of(routes), dims_of(routes), dims_of(values))
    weighted = np.where(gates != 0, shards.of(values) * gates, 0)
    return [weighted.sum(dims_of(values).index(op.dim))]
