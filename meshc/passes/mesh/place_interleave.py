"""place-interleave: number the cores of each axis so that a ring step is at most two hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshc.analysis.layout.coordinates import ring_core
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.passes.mesh.select_dispatch import takes_turns
from meshc.passes.mesh.select_gemm import NATURAL
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class PlaceInterleave(Pass):
    """Order axes by INTERLEAVE (WaferLLM section 5.2, Algorithm 1).

    On a line of N cores a ring in natural order has one message of N - 1 hops at each step; in
    this order every message is at most two hops, for every N. ``axes`` names those to order;
    ``all`` are those of the plane and the cores of a segment, ``none`` keeps the natural order.
    Cannon's algorithm and SUMMA are made for that, and so are cores that multicast in turn:
    programs that have them keep all axes as they are. Whole rings of a torus stay as they are too,
    since their ends are neighbours. Prefill and decode share the KV cache and must be placed alike,
    so ``--algo gemm=cannon`` means ``none`` for both, whether or not a phase has such products.

    Before::

        mesh y = 4, x = 4

    After::

        mesh y = 4 interleaved, x = 4 interleaved
    """

    NAME: ClassVar[str] = "place-interleave"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"placed"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    axes: str = "all"

    def run(self, module: Module, report: Diagnostics) -> Module:
        mesh = module.the_mesh()
        named = {"all": mesh.ranked, "none": ()}.get(self.axes)
        axes = list(self.axes.split() if named is None else named)
        axes = [] if natural_order(module) else axes
        unknown = [a for a in axes if a not in mesh.ranked]
        if unknown:
            there = ", ".join(mesh.ranked)
            fail("bad-option", f"no axis '{unknown[0]}' to place; there are {there}")
        if module.device is not None:
            closed = [a for a in axes if module.device.closes(a, mesh.size(a))]
            axes = [a for a in axes if a not in closed]
            for axis in closed:
                words = f"axis {axis}: {mesh.size(axis)} cores are a ring of neighbours as they lie"
                report.remark("placement", words)
        module.mesh = mesh.with_interleaved(axes)
        for axis in axes:
            size = mesh.size(axis)
            if size > 2:
                report.remark(
                    "placement",
                    f"axis {axis}: a ring step over {size} cores takes at most {hops(size)} hops "
                    f"instead of {size - 1}",
                )
        return module


def natural_order(module: Module) -> bool:
    """Whether the algorithm of a product, or of a dispatch, counts on ranks being positions."""
    return takes_turns(module) or any(
        isinstance(op, ops.Gemm) and op.algo in NATURAL for op in module.walk()
    )


def hops(size: int) -> int:
    """Longest ring step on an interleaved axis of ``size`` cores, by walking the ring."""
    where = np.asarray(ring_core(size).evaluate({"p": np.arange(size)}))
    return int(np.abs(where - np.roll(where, 1)).max())
