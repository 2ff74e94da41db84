"""not_overwritten: versions of scratch that share memory are read before the next is written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from meshc.analysis.proofs.isl import Point, uncovered_point
from meshc.analysis.tasks.accesses import OTHER, Access, At, accesses, same_requests
from meshc.analysis.tasks.order import Meeting, behind, met, same_block, whole_meetings
from meshc.ir.affine import Cond
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text

GIVER = "giver."
"""What the names of the task begin with that gives what is read."""


def check(module: Module) -> None:
    """For each folded buffer, nobody writes another version over an element between the task that
    gives it and those that need it. Raises ``overwritten``."""
    versions = Versions(module)
    for buffer in module.buffers:
        if buffer.kept is not None:
            versions.check(buffer)


class Versions:
    """What tasks of ``module`` need and give, whatever its buffers keep."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.every = [*accesses(module)]
        self.meetings = whole_meetings(module, self.every)

    def check(self, buffer: Buffer) -> None:
        """The same of one buffer, with as many versions as it keeps."""
        module = self.module
        mine = [access for access in self.every if access.buffer is buffer.value]
        gives = [access for access in mine if isinstance(access.op, task.Give)]
        for need, over in product((a for a in mine if isinstance(a.op, task.Need)), gives):
            faults = _faults(module, need, over, gives, buffer.kept or 1, self.meetings)
            point = next(faults, None)
            if point is not None:
                reader, writer = At(need, module), At(over, module, OTHER, shared=1)
                fail(
                    "overwritten",
                    f"{need.words} may find {element_text(writer, point)}, given by "
                    f"{task_text(writer, point)}, in place of {element_text(reader, point)}",
                    need.op.span,
                    notes=[f"in {task_text(reader, point)}"],
                    help=f"{buffer.value} keeps too few versions, or a meeting is missing",
                )


def _faults(
    module: Module,
    need: Access,
    over: Access,
    gives: list[Access],
    kept: int,
    found: list[Meeting],
) -> Iterator[Point]:
    """Points where ``over`` writes another version over what ``need`` reads: not behind it with a
    meeting or in its block, and not in front of the task that gives it either."""
    reader, writer = At(need, module), At(over, module, OTHER, shared=1)
    version, other = At(need, module, shared=1), At(over, module, OTHER, shared=1)
    own, theirs = version.of(need.elements[0]), other.of(over.elements[0])
    same = reader.touched & writer.touched & same_requests(reader, writer)
    same = same & Cond.eq((own - theirs) % kept, 0) & Cond.ne(own, theirs)
    if same.is_false:
        return
    between, hidden = met(reader, writer, found)
    safe_behind = behind(writer, reader) & (between | same_block(reader, writer))
    for give in gives:
        giver = At(give, module, GIVER)
        given = same & giver.touched & same_requests(reader, giver)
        before, more = met(writer, giver, found)
        safe_before = behind(giver, writer) & (before | same_block(giver, writer))
        names = tuple(dict.fromkeys((*hidden, *more)))
        point = uncovered_point(given, safe_behind | safe_before, names)
        if point is not None:
            yield point
