"""Which task runs before which: by phases, and by the meetings of blocks.

A meeting by a counter keeps all that is in front of it apart from all that is behind it, on the GPU
of one rank; one of ranks does on those of all. One by
tags makes each task of the phase behind it wait for the words that it needs, and for nothing else.
It is *whole*, as good as a counter, where each of these tasks so waits for every task of the phase
in front, and every block has tasks of both (``whole_meetings``). Where ranks give each other words,
no task waits for all of them; but all tasks of a phase together do, and the next meeting behind
that then keeps what all ranks have done in front of the first apart from what is behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshc.analysis.proofs.isl import Point, difference_point, uncovered_point
from meshc.analysis.tasks.accesses import (
    OTHER,
    Access,
    Around,
    At,
    Path,
    families_of,
    same_rank,
    same_requests,
    tasks_of,
)
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.ranks import RANK
from meshc.support.shared import shared

MEETING = "meeting."
"""What the names of a meeting begin with."""


def behind(first: At, second: At) -> Cond:
    """Where the phase of the first access begins behind the end of that of the second one."""
    return _behind(first.access.path, second.access.path, first.prefix, second.prefix)


@shared
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
class Front:
    """A phase that ends right in front of a meeting, in the rounds of the meeting's loops where
    ``known`` holds; ``rounds`` are then those of its own loops."""

    phase: task.Phase
    known: Cond
    rounds: Mapping[str, Expr]


@dataclass(frozen=True, eq=False)
class Meeting:
    """A ``task.meet`` at its place in the program; ``known`` are the rounds of loops around it.
    ``behind`` is the phase that follows it, if one does, ``fronts`` those that end in front of it:
    None where that depends on the run. With ``since``, a meeting in front of it whose loops are
    then in ``rounds``, it keeps what all ranks do in front of that one apart from what is behind
    this one, and orders nothing of what lies between them."""

    op: task.Meet
    path: Path
    names: tuple[str, ...]
    known: Cond
    behind: task.Phase | None
    fronts: tuple[Front, ...] | None
    since: Meeting | None = None
    rounds: Mapping[str, Expr] = field(default_factory=dict)

    @property
    def of_ranks(self) -> bool:
        """Whether all ranks meet."""
        return self.op.kind == task.RANKS or self.since is not None


def meetings(module: Module) -> list[Meeting]:
    """The meetings of ``module``, in text order."""
    return [*_meetings(module.program.body, Around((), (), Cond.true(), {}), ())]


_Fronts = tuple[Front, ...] | None


def _meetings(block: Block, around: Around, before: _Fronts) -> Iterator[Meeting]:
    for place, op in enumerate(block.ops):
        if isinstance(op, tile.For):
            inner = around.at((place, op.var)).loop(op)
            yield from _meetings(op.regions[0], inner, _at_start(op, _fronts(block, place, before)))
        elif isinstance(op, task.Meet):
            here = around.at((place, "")).behind(op)
            after = block.ops[place + 1] if place + 1 < len(block.ops) else None
            behind = after if isinstance(after, task.Phase) else None
            fronts = _fronts(block, place, before)
            yield Meeting(op, here.path, here.names, here.known, behind, fronts)


def _fronts(block: Block, end: int, before: _Fronts) -> _Fronts:
    """The phases that end in front of op ``end`` of ``block``, in front of which ``before`` do."""
    for op in reversed(block.ops[:end]):
        if isinstance(op, task.Meet):
            continue
        if not _always(op):
            return None
        if isinstance(op, task.Phase):
            return (Front(op, Cond.true(), {}),)
        if not isinstance(op, tile.For) or not op.count.is_const or op.count.constant < 1:
            return None
        inner = _fronts(op.regions[0], len(op.regions[0].ops), None)
        return _in_round(inner, op.var, op.count - 1, Cond.true())
    return before


def _at_start(loop: tile.For, before: _Fronts) -> _Fronts:
    """The phases that end in front of the body of ``loop``: what is in front of the loop does in
    front of its first round."""
    first, later = Cond.eq(Expr.var(loop.var), 0), Cond.gt(Expr.var(loop.var), 0)
    body = loop.regions[0]
    earlier = _in_round(_fronts(body, len(body.ops), None), loop.var, Expr.var(loop.var) - 1, later)
    if before is None or earlier is None:
        return None
    return (*(Front(f.phase, f.known & first, f.rounds) for f in before), *earlier)


def _in_round(fronts: _Fronts, var: str, value: Expr, known: Cond) -> _Fronts:
    if fronts is None:
        return None
    return tuple(Front(f.phase, f.known & known, {**f.rounds, var: value}) for f in fronts)


def _always(op: Op) -> bool:
    return op.when is None or op.when.is_true


def whole_meetings(module: Module, every: Sequence[Access]) -> list[Meeting]:
    """The meetings of ``module`` that keep what is in front of them apart from what is behind."""
    tagged = {buffer.value for buffer in module.buffers if buffer.tags is not None}
    given = [a for a in every if isinstance(a.op, task.Give) and a.buffer in tagged]
    needed = [a for a in every if isinstance(a.op, task.Need) and a.buffer in tagged]
    every_meeting = meetings(module)
    found = [
        one
        for one in every_meeting
        if one.op.kind != task.TAGS or _is_whole(module, one, needed, given)
    ]
    return [*found, *_of_ranks(module, every_meeting, found, needed, given)]


def _of_ranks(
    module: Module,
    every: Sequence[Meeting],
    whole: Sequence[Meeting],
    needed: Sequence[Access],
    given: Sequence[Access],
) -> Iterator[Meeting]:
    """Those of ``whole`` in front of which tasks end that wait for words of all ranks: together for
    all that these give in front of a meeting by tags."""
    begins = [
        one
        for one in every
        if one.op.kind == task.TAGS and _hears_of_all(module, one, needed, given)
    ]
    for one in whole if begins else ():
        if one.op.kind == task.CLUSTER or not _always(one.op):
            continue
        for front in one.fronts or ():
            for since in begins:
                if since.behind is front.phase:
                    known = one.known & front.known
                    yield replace(one, known=known, since=since, rounds=front.rounds)


def _hears_of_all(
    module: Module, meeting: Meeting, needed: Sequence[Access], given: Sequence[Access]
) -> bool:
    """Whether the tasks behind a meeting by tags together wait for every task in front of it, of
    all ranks, and every block of these has such tasks."""
    behind, fronts = meeting.behind, meeting.fronts
    if behind is None or fronts is None or not (_always(meeting.op) and _always(behind)):
        return False
    needs = [a for a in needed if a.phase is behind and _is_first(a)]
    for front in fronts:
        if front.phase.blocks != behind.blocks or not _has_all_blocks(front.phase):
            return False
        for there in families_of(front.phase):
            gives = [a for a in given if a.family is there and _is_last(a)]
            if not any(_heard(module, meeting, front, needs, g) for g in gives):
                return False
    return True


def _heard(
    module: Module, meeting: Meeting, front: Front, needs: Sequence[Access], give: Access
) -> bool:
    """Whether some task behind ``meeting`` needs each element that tasks of any rank ``give``."""
    writer = At(give, module, OTHER)
    if not writer.of_ranks:
        return False
    readers = [At(need, module) for need in needs if need.buffer is give.buffer]
    if not readers:
        return False
    rounds = [
        Cond.eq(writer.of(name), front.rounds.get(name, Expr.var(name))) for name in give.around
    ]
    ranks = module.scalars[RANK][1] + 1
    known = front.known & Cond.all(rounds) & Cond.between(0, Expr.var(RANK), ranks)
    known = known & Cond.all(same_requests(reader, writer) for reader in readers)
    own = {name for need in needs for name in need.names} - {*meeting.names}
    covered = Cond.any(reader.touched for reader in readers)
    return uncovered_point(known & writer.touched, covered, sorted(own)) is None


def _is_whole(
    module: Module, meeting: Meeting, needed: Sequence[Access], given: Sequence[Access]
) -> bool:
    """Whether each task of the phase behind a meeting by tags waits for every task in front."""
    behind, fronts = meeting.behind, meeting.fronts
    if behind is None or fronts is None or not (_always(meeting.op) and _always(behind)):
        return False
    for front in fronts:
        if not _has_all_blocks(behind, front.phase):
            return False
        for here in families_of(behind):
            needs = [a for a in needed if a.family is here and _is_first(a)]
            for there in families_of(front.phase):
                gives = [a for a in given if a.family is there and _is_last(a)]
                if not any(_waits(module, front, n, g) for n in needs for g in gives):
                    return False
    return True


def _has_all_blocks(*phases: task.Phase) -> bool:
    """Whether the same blocks have tasks of all phases, each of them."""
    blocks = phases[0].blocks
    alike = all(p.blocks == blocks and not p.groups for p in phases)
    return alike and all(0 < blocks <= tasks_of(p) for p in phases)


def _is_first(need: Access) -> bool:
    """Whether each task of a family needs it, in front of all that it gives."""
    before = need.family.regions[0].ops
    return _of_task(need) and not any(
        isinstance(op, task.Give) for op in before[: before.index(need.op)]
    )


def _is_last(give: Access) -> bool:
    """Whether each task of a family gives it, behind all that it needs."""
    ops = give.family.regions[0].ops
    return _of_task(give) and not any(
        isinstance(inner, task.Need)
        for op in ops[ops.index(give.op) :]
        for inner in (op, *(o for region in op.regions for o in region.walk()))
    )


def _of_task(access: Access) -> bool:
    """Whether each task of its family does it, once."""
    own = any(op is access.op for op in access.family.regions[0].ops)
    return own and _always(access.op) and _always(access.family) and not access.folds


def _waits(module: Module, front: Front, need: Access, give: Access) -> bool:
    """Whether each task with ``need`` needs all that each one with ``give`` gives."""
    if need.buffer is not give.buffer:
        return False
    reader, writer = At(need, module), At(give, module, OTHER)
    rounds = [
        Cond.eq(writer.of(name), front.rounds.get(name, Expr.var(name))) for name in give.around
    ]
    known = need.known & front.known & Cond.all(rounds) & same_requests(reader, writer)
    return uncovered_point(known & writer.touched, reader.touched, ()) is None


def waiting(module: Module) -> frozenset[task.Phase]:
    """The phases whose tasks wait for the words that they need: those behind meetings by tags."""
    found = (one for one in meetings(module) if one.op.kind == "tags" and _always(one.op))
    return frozenset(one.behind for one in found if one.behind is not None)


def met(first: At, second: At, every: Sequence[Meeting]) -> tuple[Cond, tuple[str, ...]]:
    """Where one of ``every`` meeting lies behind the phase of the first access and in front of that
    of the second, in both of whose blocks it is met; and the names of the meeting, for some values
    of which it does."""
    parts = {meeting: _met(first, second, meeting) for meeting in every}
    hidden = {
        MEETING + name
        for meeting, here in parts.items()
        if not here.is_false
        for name in meeting.names
    }
    return Cond.any(parts.values()), tuple(sorted(hidden))


def _met(first: At, second: At, meeting: Meeting) -> Cond:
    """The same of one meeting."""
    here = lies_between(first, second, meeting)
    if here.is_false or meeting.of_ranks:
        return here
    if meeting.op.kind == task.CLUSTER:
        here = here & same_group(first, second)
    return here & same_rank(first, second)


def lies_between(first: At, second: At, meeting: Meeting) -> Cond:
    """Where a meeting, of whatever kind, lies behind the phase of the first access and in front of
    that of the second, for some values of its names."""
    begin = meeting.since or meeting
    later = _behind(begin.path, first.access.path, MEETING, first.prefix)
    if later.is_false:
        return later
    sooner = _behind(second.access.path, meeting.path, second.prefix, MEETING)
    if sooner.is_false:
        return sooner
    names = {name: Expr.var(MEETING + name) for name in meeting.names}
    later = later.substitute(
        {MEETING + name: round.substitute(names) for name, round in meeting.rounds.items()}
    )
    return meeting.known.substitute(names) & later & sooner


def begun(give: At, every: Sequence[Meeting]) -> tuple[Cond, tuple[str, ...]]:
    """Where all ranks have met in this run in front of what one of them gives all; and the names of
    a meeting, for some values of which they have."""
    parts, hidden = [], set[str]()
    for meeting in every:
        if meeting.op.kind == task.RANKS:
            names = {name: Expr.var(MEETING + name) for name in meeting.names}
            hidden |= {MEETING + name for name in meeting.names}
            sooner = _behind(give.access.path, meeting.path, give.prefix, MEETING)
            parts.append(meeting.known.substitute(names) & sooner)
    return Cond.any(parts), tuple(sorted(hidden))


def same_block(first: At, second: At) -> Cond:
    """Where one block runs both tasks, which it does in the order of their phases; of tasks that
    are dealt to clusters, however many of these there are."""
    found = _equal(first, second, first.block, second.block) & same_rank(first, second)
    if first.access.phase.groups or second.access.phase.groups:
        return found & same_group(first, second)
    return found


def same_cluster(first: At, second: At) -> Cond:
    """Where blocks of one cluster run both tasks."""
    return _equal(first, second, first.cluster, second.cluster)


def same_group(first: At, second: At) -> Cond:
    """Where both tasks are of one group, which one cluster has, however many there are: a launch
    has as many as find room."""
    if first.access.phase.groups != second.access.phase.groups:
        return Cond.false()
    return _equal(first, second, first.group, second.group)


def _equal(first: At, second: At, one: Expr | None, other: Expr | None) -> Cond:
    """Where ``one`` is ``other``, of two accesses in phases that are placed alike."""
    here, there = first.access.phase, second.access.phase
    if one is None or other is None or (here.blocks, here.cluster) != (there.blocks, there.cluster):
        return Cond.false()
    return Cond.eq(one, other)


def leaves_cluster(module: Module, need: Access, give: Access) -> Point | None:
    """An element that a task needs of one of another cluster, with the names of the need, and those
    of the give behind :data:`OTHER`; None if there is none."""
    reader, writer = At(need, module), At(give, module, OTHER)
    edge = reader.touched & writer.touched & same_requests(reader, writer) & behind(reader, writer)
    return difference_point(edge, same_group(reader, writer))
