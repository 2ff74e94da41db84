"""csl_memory: buffers of a CSL program have memory of their own, its kernels enough scratch."""

from __future__ import annotations

from meshc.analysis.csl.memory import wrong_memory
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """No two buffers overlap, each is aligned or one element late, and scratch is as large as the
    kernel that needs the most of it."""
    wrong = wrong_memory(module)
    if wrong is not None:
        fail("csl-memory-wrong", wrong, help="the pass plan-csl-memory gives memory")
