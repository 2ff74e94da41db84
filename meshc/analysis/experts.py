"""Which dims count experts, and which products every core wants whole."""

from __future__ import annotations

from meshc.ir.batch import BATCH
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph


def expert_dims(module: Module) -> frozenset[str]:
    """The dims of all scores of which some are chosen."""
    return frozenset(op.dim for op in module.walk() if isinstance(op, graph.TopK))


def whole_dims(module: Module) -> frozenset[str]:
    """Dims of which every core that has a row has all: experts, among whose scores it chooses, and
    what is cached without heads, which the query heads of all cores share."""
    if not any(attention.headless for attention in module.attention):
        return expert_dims(module)
    lanes = {
        dim
        for op in module.walk()
        if isinstance(op, graph.Append)
        for dim in tensor_type(op.operands[1]).dims
    }
    heads = {attention.query for attention in module.attention}
    return expert_dims(module) | lanes - heads - {BATCH, module.row_dim}
