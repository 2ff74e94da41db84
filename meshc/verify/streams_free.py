"""streams_free: no task writes what a task streams, so that it may be brought at any time."""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.analysis.tasks.accesses import OTHER, At, accesses, same_requests
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """No stream has an element in common with a give. Raises ``stream-written``."""
    every = [*accesses(module)]
    for stream in every:
        for give in every if isinstance(stream.op, task.Stream) else ():
            if not isinstance(give.op, task.Give) or give.buffer is not stream.buffer:
                continue
            read, written = At(stream, module), At(give, module, OTHER)
            both = read.touched & written.touched & same_requests(read, written)
            point = find_point(both, stream.elements)
            if point is not None:
                fail(
                    "stream-written",
                    f"{stream.words} brings {element_text(read, point)}, which "
                    f"{task_text(written, point)} gives in the same run",
                    stream.op.span,
                    help="need what this run gives; a stream may be brought before",
                )
