"""meet: where blocks wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.verify import check_fact


@dataclass(frozen=True)
class Meet(Pass):
    """Let all blocks meet where tasks need what tasks of other blocks have given, and nowhere else.

    Meetings stand in front of phases; each that the others make superfluous, or that lies between
    tasks of one block alone, is left out. A remark says how many are left in each loop.

    Before::

        task.phase {name = y, blocks = 2} {

    After::

        task.meet
        task.phase {name = y, blocks = 2} {
    """

    NAME: ClassVar[str] = "meet"
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"given_before"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"ordered"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"not_overwritten"})

    def run(self, module: Module, report: Diagnostics) -> Module:
        blocks = [*_blocks(module.program.body)]
        for block in blocks:
            block.ops = [op for op in block.ops if not isinstance(op, task.Meet)]
            block.ops = [
                one
                for op in block.ops
                for one in ((task.Meet(), op) if isinstance(op, task.Phase) else (op,))
            ]
        for block in blocks:
            for meeting in [op for op in block.ops if isinstance(op, task.Meet)]:
                place = block.ops.index(meeting)
                del block.ops[place]
                if not _ordered(module):
                    block.ops.insert(place, meeting)
        for block in blocks:
            count = sum(isinstance(op, task.Meet) for op in block.ops)
            phases = sum(isinstance(op, task.Phase) for op in block.ops)
            report.remark("meetings", f"blocks meet {count} times around {phases} phases")
        return module


def _blocks(block: Block) -> Iterator[Block]:
    """The blocks of a program that hold phases."""
    yield block
    for op in block.ops:
        if isinstance(op, tile.For):
            yield from _blocks(op.regions[0])


def _ordered(module: Module) -> bool:
    try:
        check_fact(module, "ordered")
    except MeshcError:
        return False
    return True
