"""meet: where blocks wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.verify import check_fact
from meshc.verify.ordered import Edges

TAGS = 2
"""Bits of a tag. The three that there are, 1, 2 and 3, tell a value from the one before it in its
word, which is the only other one that can lie there. What is left of f32 are 22 bits, as many as
products keep of a left side in f16, and more than the 16 in bf16."""


MANY_SPLITS = 8
"""Splits of attention whose records are many to merge for tasks that have more to do."""

_OF_ALL = (task.COUNTER, task.TAGS)
"""Kinds of meetings that a pipeline may ask for."""


@dataclass(frozen=True)
class Meet(Pass):
    """Let blocks meet where tasks need what tasks of other blocks have given, and nowhere else.

    Meetings stand in front of phases; each that the others make superfluous, or that lies between
    tasks of one block alone, is left out. All blocks meet, by a counter; only those of each cluster
    where nobody needs more (``kind = cluster``). In a program of ranks those of all of them meet
    (``kind = ranks``) where one needs what others give, and once before any gives to the others'
    memory. With ``kind = tags`` meetings of all blocks, and those of ranks but for that at the
    start, become meetings by
    tags, where what the tasks behind them need is scratch of f32 that is given whole in every run:
    its words get tags, of :data:`TAGS` bits. What chosen experts give needs a counter, and so do
    products that merge many splits of attention. A remark says how many are left in each loop.

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

    kind: str = "counter"

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.kind not in _OF_ALL:
            known = ", ".join(_OF_ALL)
            fail("bad-pass-option", f"meet: there is no kind '{self.kind}' (there are {known})")
        blocks = [*_blocks(module.program.body)]
        widest = task.COUNTER if module.ranks is None else task.RANKS
        for buffer in module.buffers:
            buffer.tags = None
        for block in blocks:
            block.ops = [op for op in block.ops if not isinstance(op, task.Meet)]
            block.ops = [
                one
                for op in block.ops
                for one in (_behind(op, widest) if isinstance(op, task.Phase) else (op,))
            ]
        # The one at the start goes last, if it may, so that ranks meet there and not in each layer.
        edges = Edges(module)
        meetings = [(b, op) for b in blocks for op in b.ops if isinstance(op, task.Meet)]
        for block, meeting in meetings[1:] + meetings[:1]:
            if edges.without(meeting):
                del block.ops[block.ops.index(meeting)]
            elif meeting.kind == task.RANKS:
                edges.with_kind(meeting, task.COUNTER)
        if any(isinstance(op, task.Phase) and op.groups for op in module.walk()):
            for block, meeting in meetings:
                if meeting in block.ops:
                    edges.with_kind(meeting, task.CLUSTER)
        for block in blocks:
            for place, op in enumerate(block.ops):
                if self.kind != "tags" or not isinstance(op, task.Meet):
                    continue
                if op.kind in (task.COUNTER, task.RANKS):
                    _by_tags(module, op, block.ops[place + 1])
        for block in blocks:
            kinds = [op.kind for op in block.ops if isinstance(op, task.Meet)]
            phases = sum(isinstance(op, task.Phase) for op in block.ops)
            tags = f" ({kinds.count('tags')} by tags)" if "tags" in kinds else ""
            own = {"of a cluster": task.CLUSTER, "of all ranks": task.RANKS}
            counts = {words: kinds.count(kind) for words, kind in own.items() if kind in kinds}
            words = "".join(f", {count} of them those {whose}" for whose, count in counts.items())
            report.remark(
                "meetings", f"blocks meet {len(kinds)} times{tags} around {phases} phases{words}"
            )
        return module


def _by_tags(module: Module, meeting: task.Meet, phase: Op) -> None:
    """Make a meeting one by tags, and give the words tags that tasks behind it need, if it orders
    all that it did before. What is done for experts alone waits for no words, as some are not
    given; nor has what is compared or counted tags, or what is a result as ranks have given it."""
    needed = {op.view.buffer for op in phase.regions[0].walk() if isinstance(op, task.Need)}
    if needed & _of_experts(module) or _merges_for_itself(phase):
        return
    if meeting.kind == task.RANKS and _gives_results(module, phase):
        return
    fresh = [b for b in module.buffers if b.value in needed and b.tags is None]
    exact = _counted(module)
    if any(
        b.type.dtype is not DType.F32 or b.cluster is not None or b.value in exact for b in fresh
    ):
        return
    before, meeting.kind = meeting.kind, task.TAGS
    for buffer in fresh:
        buffer.tags = TAGS
    if not _ordered(module):
        meeting.kind = before
        for buffer in fresh:
            buffer.tags = None


def _merges_for_itself(phase: Op) -> bool:
    """Whether products of a phase merge what attention leaves of many splits. A thread asks for the
    records of a few, and for more once these are there; behind a counter it need not wait for them.
    On an H200 this takes 3 us less of each layer of SmolLM2-135M, with 44 splits."""
    return any(
        isinstance(op, tile.For)
        and op.count.constant >= MANY_SPLITS
        and any(
            isinstance(o, tile.Compute) and o.kernel == "merge_softmax" for o in op.regions[0].ops
        )
        for family in phase.regions[0].ops
        if any(isinstance(o, task.Stream) for o in family.regions[0].ops)
        for op in family.regions[0].ops
    )


def _gives_results(module: Module, phase: Op) -> bool:
    """Whether tasks of ``phase`` give results of the program."""
    results = {b.value for b in module.buffers if b.role == "out"}
    gives = (op for op in phase.regions[0].walk() if isinstance(op, task.Give))
    return any(op.view.buffer in results for op in gives)


def _of_experts(module: Module) -> set[Value]:
    """Buffers that tasks give something of where an expert is chosen."""
    routed = (op for op in module.walk() if isinstance(op, task.Routed))
    gives = (op for one in routed for op in one.regions[0].walk() if isinstance(op, task.Give))
    return {op.view.buffer for op in gives}


def _counted(module: Module) -> set[Value]:
    """Buffers of what a choice looks for, and of the indices at which it is found: their values are
    compared and counted to the last bit."""
    return {
        op.view.buffer
        for family in module.walk()
        if isinstance(family, task.Family)
        and any(isinstance(op, tile.Compute) and op.kernel == "first_at" for op in _ops_of(family))
        for op in _ops_of(family)
        if isinstance(op, (task.Need, task.Give))
    }


def _ops_of(family: task.Family) -> Iterator[Op]:
    return family.regions[0].walk()


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


def _behind(phase: task.Phase, kind: str) -> tuple[Op, Op]:
    """A meeting, and the ``phase`` in front of which it stands."""
    return task.Meet(kind=kind, span=phase.span), phase
