"""schedule-tasks: wait as late as possible, so that transfers overlap with work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class ScheduleTasks(Pass):
    """Move each wait down past work that does not touch what its transfers move.

    The order of sends and receives on a channel stays, and no wait moves past another transfer of
    a channel it waits for, so what was free of deadlock stays so.

    Before::

        tile.wait %sent, %got
        tile.silu %z, %u
        tile.add %z, %z, %y

    After::

        tile.silu %z, %u
        tile.wait %sent, %got
        tile.add %z, %z, %y
    """

    NAME: ClassVar[str] = "schedule-tasks"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"deadlock_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset(
        {"csl_memory", "csl_queues", "csl_tasks", "csl_words", "memory_planned"}
    )

    def run(self, module: Module, report: Diagnostics) -> Module:
        moved = sum(sink_waits(block) for block in _every_block(module))
        report.remark("schedule", f"{moved} waits moved behind independent work")
        return module


def _every_block(module: Module) -> list[Block]:
    nested = [region for op in module.walk() for region in op.regions]
    return module.blocks() + nested


def sink_waits(block: Block) -> int:
    """Move waits of one block down; returns how many moved."""
    moved = 0
    for wait in [o for o in block.ops if isinstance(o, tile.Wait)]:
        start = block.ops.index(wait)
        blockers = _moved_buffers(block, wait)
        place = start
        while place + 1 < len(block.ops) and _independent(block.ops[place + 1], blockers):
            place += 1
        if place != start:
            block.ops.insert(place, block.ops.pop(start))
            moved += 1
    return moved


def _moved_buffers(block: Block, wait: tile.Wait) -> set[Value]:
    """Buffers that the transfers of ``wait`` read or write."""
    tokens = set(wait.tensors())
    transfers = [o for o in block.ops if tokens & set(o.results)]
    return {v.buffer for o in transfers for v in o.views()}


def _independent(op: Op, buffers: set[Value]) -> bool:
    """Whether a wait for transfers of ``buffers`` may move past ``op``."""
    if not isinstance(op, tile.Compute):
        return False
    return not any(v.buffer in buffers for v in op.views())
