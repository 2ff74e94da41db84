"""Which tasks of a phase each block of a GPU runs."""

from __future__ import annotations


def share(tasks: int, block: int, blocks: int) -> range:
    """The tasks of ``block``, of ``blocks``: a contiguous run of all ``tasks`` of a phase, those of
    its families one after another. Runs differ by one task at most."""
    return range(tasks * block // blocks, tasks * (block + 1) // blocks)
