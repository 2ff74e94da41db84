"""placed: neighbours in rank of an interleaved axis are at most two hops apart."""

from __future__ import annotations

from meshc.analysis.coordinates import RANKED_AXES, ring_core
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Walk each ring: every core once, at most two hops per step."""
    mesh = module.the_mesh()
    for axis in RANKED_AXES:
        size = mesh.size(axis)
        if not mesh.ring(axis):
            continue
        core = ring_core(size)
        where = [int(core.evaluate({"p": rank})) for rank in range(size)]
        if sorted(where) != list(range(size)):
            fail("not-placed", f"the ring of axis {axis} misses a core")
        for rank in range(size):
            if abs(where[rank] - where[rank - 1]) > 2:
                fail("not-placed", f"axis {axis}: ranks {rank - 1} and {rank} are too far apart")
