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

from meshc.analysis.proofs.isl import uncovered_point
from meshc.analysis.tasks.accesses import OTHER, Access, At, accesses, same_requests
from meshc.analysis.tasks.order import (
    Meeting,
    begun,
    behind,
    met,
    same_block,
    waiting,
    whole_meetings,
)
from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """Each edge lies over a meeting or within a block. Raises ``not-ordered``."""
    every = [*accesses(module)]
    found, waits = whole_meetings(module, every), waiting(module)
    tagged = {buffer.value for buffer in module.buffers if buffer.tags is not None}
    for buffer in module.buffers:
        if buffer.tags is not None:
            _given_whole(module, buffer, every)
    for give in every:
        if isinstance(give.op, task.Give):
            _begun(At(give, module), found)
    for need in every:
        if need.buffer in tagged and need.phase in waits:
            continue
        for give in every if isinstance(need.op, task.Need) else ():
            if not isinstance(give.op, task.Give) or give.buffer is not need.buffer:
                continue
            reader, writer = At(need, module), At(give, module, OTHER)
            between, hidden = met(writer, reader, found)
            edge = reader.touched & writer.touched & same_requests(reader, writer)
            edge = edge & behind(reader, writer)
            point = uncovered_point(edge, between | same_block(reader, writer), hidden)
            if point is not None:
                fail(
                    "not-ordered",
                    f"{need.words} may run before {task_text(writer, point)} has given "
                    f"{element_text(reader, point)}",
                    need.op.span,
                    notes=[f"in {task_text(reader, point)}"],
                    help="let blocks meet in between (task.meet), which the pass meet does",
                )


def _begun(give: At, found: Sequence[Meeting]) -> None:
    """All ranks have begun the run before one gives to the memory of others."""
    if not give.of_ranks:
        return
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
    """Each element of a buffer with tags is given, whatever the run."""
    gives = [
        a
        for a in every
        if isinstance(a.op, task.Give)
        and a.buffer is buffer.value
        and (a.op.when is None or a.op.when.is_true)
        and not a.op.view.free_vars & module.scalars.keys()
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
