"""ordered: between a task and those that need what it gives blocks meet, or one block runs both, or
the task that needs it waits for its words.

A word has the tag of its version when the task has given it, and no other one before: of the values
that lie in it one after the other each has the next tag. For that every version is given whole in
every run.

What ranks give each other comes behind a meeting of all ranks in the same run: by then the run in
front has ended on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshc.analysis.proofs.isl import uncovered_point
from meshc.analysis.tasks.accesses import OTHER, Access, At, accesses, same_requests
from meshc.analysis.tasks.order import (
    Meeting,
    begun,
    behind,
    lies_between,
    met,
    same_block,
    waiting,
    whole_meetings,
)
from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task
from meshc.ir.ranks import RANK
from meshc.support.diagnostics import MeshcError, fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """Each edge lies over a meeting or within a block. Raises ``not-ordered``."""
    edges = Edges(module)
    for buffer in module.buffers:
        if buffer.tags is not None:
            _given_whole(module, buffer, edges.every)
    for give in edges.to_ranks:
        _begun(give, edges.meetings)
    waits = waiting(module)
    tagged = {buffer.value for buffer in module.buffers if buffer.tags is not None}
    for edge in edges.edges:
        need = edge.reader.access
        if not (need.buffer in tagged and need.phase in waits):
            edge.check(edges.meetings)


@dataclass(frozen=True, eq=False)
class Edge:
    """A need, and a give of the same buffer in front of it."""

    reader: At
    writer: At

    @cached_property
    def known(self) -> Cond:
        """Where one task needs what another one gives."""
        one, other = self.reader, self.writer
        return one.touched & other.touched & same_requests(one, other) & behind(one, other)

    @cached_property
    def within(self) -> Cond:
        """Where one block runs both tasks."""
        return same_block(self.writer, self.reader)

    def over(self, meeting: Meeting) -> bool:
        """Whether it may lie over a meeting, of whatever kind."""
        return not lies_between(self.writer, self.reader, meeting).is_false

    def check(self, found: Sequence[Meeting]) -> None:
        """It lies over one of these meetings or within a block. Raises ``not-ordered``."""
        between, hidden = met(self.writer, self.reader, found)
        point = uncovered_point(self.known, between | self.within, hidden)
        if point is not None:
            need = self.reader.access
            fail(
                "not-ordered",
                f"{need.words} may run before {task_text(self.writer, point)} has given "
                f"{element_text(self.reader, point)}",
                need.op.span,
                notes=[f"in {task_text(self.reader, point)}"],
                help="let blocks meet in between (task.meet), which the pass meet does",
            )


class Edges:
    """What tasks of ``module`` give and others need, and the ``meetings`` that keep them apart,
    some of which may be left out."""

    def __init__(self, module: Module) -> None:
        self.every = [*accesses(module)]
        self.meetings = whole_meetings(module, self.every)
        gives = [access for access in self.every if isinstance(access.op, task.Give)]
        self.to_ranks = [at for give in gives if (at := At(give, module)).of_ranks]
        self.edges = [
            Edge(At(need, module), At(give, module, OTHER))
            for need in self.every
            if isinstance(need.op, task.Need)
            for give in gives
            if give.buffer is need.buffer
        ]
        self.edges = [edge for edge in self.edges if not edge.known.is_false]

    def without(self, op: task.Meet) -> bool:
        """Leave out a meeting if the others order all that it does; whether that is so."""
        (meeting,) = (one for one in self.meetings if one.op is op)
        others = [one for one in self.meetings if one is not meeting]
        if not self._ordered(meeting, others):
            return False
        self.meetings = others
        return True

    def with_kind(self, op: task.Meet, kind: str) -> bool:
        """Make a meeting one of another kind if it then orders all that it did; whether it does."""
        (meeting,) = (one for one in self.meetings if one.op is op)
        before, op.kind = op.kind, kind
        if self._ordered(meeting, self.meetings):
            return True
        op.kind = before
        return False

    def _ordered(self, changed: Meeting, found: Sequence[Meeting]) -> bool:
        """Whether meetings order what does or may lie over the one that is ``changed``."""
        try:
            for give in self.to_ranks:
                _begun(give, found)
            for edge in self.edges:
                if edge.over(changed):
                    edge.check(found)
        except MeshcError:
            return False
        return True


def _begun(give: At, found: Sequence[Meeting]) -> None:
    """All ranks have begun the run before one gives to the memory of others."""
    between, hidden = begun(give, found)
    point = uncovered_point(give.touched, between, hidden)
    if point is not None:
        fail(
            "not-ordered",
            f"{give.access.words} may reach ranks that are still in the run before",
            give.access.op.span,
            notes=[f"in {task_text(give, point)}"],
            help="let all ranks meet in front of it (task.meet {kind = ranks})",
        )


def _given_whole(module: Module, buffer: Buffer, every: Sequence[Access]) -> None:
    """Each element of a buffer with tags is given, whatever the run; of what ranks give each other,
    by one of them."""
    of_run = module.scalars.keys() - ({RANK} if buffer.ranks is not None else set())
    gives = [
        a
        for a in every
        if isinstance(a.op, task.Give)
        and a.buffer is buffer.value
        and (a.op.when is None or a.op.when.is_true)
        and not a.op.view.free_vars & of_run
    ]
    names = [f"element.{place}" for place in range(len(buffer.type.shape))]
    inside = Cond.all(
        Cond.between(0, Expr.var(name), extent)
        for name, extent in zip(names, buffer.type.shape, strict=True)
    )
    hidden = sorted({n for a in gives for n in (*a.names, *module.scalars)})
    point = uncovered_point(inside, Cond.any(a.touched for a in gives), hidden)
    if point is not None:
        at = ", ".join(str(point[name]) for name in names)
        fail(
            "not-ordered",
            f"{buffer.value} has tags, but a run need not give {buffer.value}[{at}]",
            module.places.get(str(buffer.value)),
            help="a word keeps the tag of an older value where it is not given",
        )
