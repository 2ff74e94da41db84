"""cut: meetings that end a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class Cut(Pass):
    """Let a kernel end at each meeting of all blocks, and where loops begin and end.

    Each phase that others were to wait for is then a kernel of its own, which profilers and
    debuggers show by its name, and no block waits for another one. Tags are given up with the
    meetings by them. Blocks of clusters have what they gave each other in shared memory, and ranks
    wait for each other within a kernel, so programs of either are not cut.

    Before::

        task.meet
        task.phase {name = y, blocks = 2} {

    After::

        task.meet {kind = kernel}
        task.phase {name = y, blocks = 2} {
    """

    NAME: ClassVar[str] = "cut"
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"ordered"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        if module.ranks is not None:
            fail("not-cut", "ranks wait for each other within a kernel")
        if any(op.groups for op in module.walk() if isinstance(op, task.Phase)):
            fail("not-cut", "blocks of clusters have what they give each other in shared memory")
        for buffer in module.buffers:
            buffer.tags = None
        _cut(module.program.body, within_loop=False)
        return module


def _cut(block: Block, within_loop: bool) -> None:
    """Let meetings of ``block`` end kernels, and loops begin and end with them."""
    found: list[Op] = []
    apart = within_loop
    for op in block.ops:
        if isinstance(op, task.Meet):
            apart = True
            continue
        if isinstance(op, tile.For):
            _cut(op.regions[0], within_loop=True)
        elif apart:
            found.append(task.Meet(kind=task.KERNEL, span=op.span))
        found.append(op)
        apart = isinstance(op, tile.For)
    block.ops = found
