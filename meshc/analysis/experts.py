"""Which dims count experts: those of which a ``top_k`` chooses."""

from __future__ import annotations

from meshc.ir.module import Module
from meshc.ir.ops import graph


def expert_dims(module: Module) -> frozenset[str]:
    """The dims of all scores of which some are chosen."""
    return frozenset(op.dim for op in module.walk() if isinstance(op, graph.TopK))
