"""What the blocks of a GPU do in a step of tasks, as the event model predicts, as a timeline."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from meshc.cost.tasks.blocks import Stay
from meshc.cost.tasks.phase_times import Followed
from meshc.ir.module import Module
from meshc.ir.ops.task import Phase
from meshc.ir.printer import op_lines

_KINDS = ("compute", "memory", "meeting", "idle")
_COMPUTE, _MEMORY, _MEETING, _IDLE = range(len(_KINDS))


def block_timeline(phase: str, module: Module, followed: Followed) -> dict[str, Any]:
    """What each of the blocks that were ``followed`` does in which phase of ``module``, in seconds:
    it meets, waits for memory, computes, and waits for the others."""
    lines = {op.name: line for line, op in op_lines(module) if isinstance(op, Phase)}
    names = [*dict.fromkeys(followed.names)]
    by_block: dict[int, list[Stay]] = {}
    for stay in followed.stays:
        by_block.setdefault(stay.block, []).append(stay)
    end = max((stay.ended for stay in followed.stays), default=0.0)
    spans: list[list[float]] = []
    for track, (_, stays) in enumerate(sorted(by_block.items())):
        nexts = [*(after.begun for _, after in pairwise(stays)), end]
        for stay, behind in zip(stays, nexts, strict=True):
            name, streams = names.index(followed.names[stay.phase]), stay.ready + stay.waited
            for kind, start, stop in (
                (_MEETING, stay.begun, stay.ready),
                (_MEMORY, stay.ready, streams),
                (_COMPUTE, streams, stay.ended),
                (_IDLE, stay.ended, behind),
            ):
                if stop > start:
                    spans.append([track, _rounded(start), _rounded(stop - start), name, kind])
    return {
        "name": f"{phase}: blocks of the event model",
        "words": "Of a loop the first rounds are followed; others take as long as the last one. In "
        "a phase a block waits and computes in turns, which are drawn one behind the other.",
        "unit": "s",
        "phase": phase,
        "tracks": [f"block {followed.apart * block}" for block in sorted(by_block)],
        "kinds": [*_KINDS],
        "names": names,
        "lines": [[lines[one] for one in name.split(", ") if one in lines] for name in names],
        "spans": spans,
        "total": _rounded(end),
    }


def _rounded(seconds: float) -> float:
    """To a tenth of a nanosecond."""
    return round(seconds, 10)
