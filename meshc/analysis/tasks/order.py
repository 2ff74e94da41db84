"""Which task runs before which: by phases, and by the meetings of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshc.analysis.tasks.accesses import Around, At, Path
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops import task, tile

MEETING = "meeting."
"""What the names of a meeting begin with."""


def behind(first: At, second: At) -> Cond:
    """Where the phase of the first access begins behind the end of that of the second one."""
    return _behind(first.access.path, second.access.path, first.prefix, second.prefix)


def _behind(first: Path, second: Path, one: str, other: str) -> Cond:
    (here, loop), (there, _) = first[0], second[0]
    if here != there:
        return Cond.true() if there < here else Cond.false()
    if not loop:
        return Cond.false()
    later, earlier = Expr.var(one + loop), Expr.var(other + loop)
    within = _behind(first[1:], second[1:], one, other)
    return Cond.lt(earlier, later) | (Cond.eq(earlier, later) & within)


@dataclass(frozen=True)
class Meeting:
    """A ``task.meet`` at its place in the program; ``known`` are the rounds of loops around it."""

    op: task.Meet
    path: Path
    names: tuple[str, ...]
    known: Cond


def meetings(module: Module) -> list[Meeting]:
    """The meetings of ``module``, in text order."""
    return [*_meetings(module.program.body, Around((), (), Cond.true(), {}))]


def _meetings(block: Block, around: Around) -> Iterator[Meeting]:
    for place, op in enumerate(block.ops):
        if isinstance(op, tile.For):
            yield from _meetings(op.regions[0], around.at((place, op.var)).loop(op))
        elif isinstance(op, task.Meet):
            here = around.at((place, "")).behind(op)
            yield Meeting(op, here.path, here.names, here.known)


def met(first: At, second: At, every: Sequence[Meeting]) -> tuple[Cond, tuple[str, ...]]:
    """Where one of ``every`` meeting lies behind the phase of the first access and in front of that
    of the second; and the names of the meeting, for some values of which it does."""
    parts = []
    hidden: set[str] = set()
    for meeting in every:
        names = {name: Expr.var(MEETING + name) for name in meeting.names}
        hidden |= {MEETING + name for name in meeting.names}
        later = _behind(meeting.path, first.access.path, MEETING, first.prefix)
        sooner = _behind(second.access.path, meeting.path, second.prefix, MEETING)
        parts.append(meeting.known.substitute(names) & later & sooner)
    return Cond.any(parts), tuple(sorted(hidden))


def same_block(first: At, second: At) -> Cond:
    """Where one block runs both tasks, which it does in the order of their phases."""
    one, other = first.block, second.block
    if one is None or other is None or first.access.phase.blocks != second.access.phase.blocks:
        return Cond.false()
    return Cond.eq(one, other)
