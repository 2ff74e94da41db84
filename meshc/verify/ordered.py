"""ordered: between a task and those that need what it gives blocks meet, or one block runs both."""

from __future__ import annotations

from meshc.analysis.proofs.isl import uncovered_point
from meshc.analysis.tasks.accesses import OTHER, At, accesses, same_requests
from meshc.analysis.tasks.order import behind, meetings, met, same_block
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """Each edge lies over a meeting or within a block. Raises ``not-ordered``."""
    every, found = [*accesses(module)], meetings(module)
    for need in every:
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
