"""What a CSL program takes of a core besides buffers and queues, as its module says it.

``tasks`` are the ids of its local tasks (assign-csl-tasks), ``scratch`` the elements that its
kernels share, by element type or use (plan-csl-memory), ``tables`` its words of 32 bits and
``words`` those of 16 that it has besides, by use (plan-csl-words).
"""

from __future__ import annotations

from meshc.ir.module import Module

Numbers = dict[str, int]


def tasks(module: Module) -> Numbers:
    """Ids of the local tasks, by their names."""
    return module.resources.get("tasks", {})


def scratch(module: Module) -> Numbers:
    """Elements that kernels share, by element type or use."""
    return module.resources.get("scratch", {})


def tables(module: Module) -> Numbers:
    """Words of 32 bits, by use."""
    return module.resources.get("tables", {})


def words(module: Module) -> Numbers:
    """Words of 16 bits, by use."""
    return module.resources.get("words", {})
