"""Which tasks of a phase each block of a GPU runs."""

from __future__ import annotations

from meshc.ir.affine import Expr


def share(tasks: int, block: int, blocks: int) -> range:
    """The tasks of ``block``, of ``blocks``: a contiguous run of all ``tasks`` of a phase, those of
    its families one after another. Runs differ by one task at most."""
    return range(tasks * block // blocks, tasks * (block + 1) // blocks)


def runner(task: Expr, tasks: int, blocks: int) -> Expr:
    """The block in whose share ``task`` of ``tasks`` is."""
    return ((task + 1) * blocks - 1) // tasks
