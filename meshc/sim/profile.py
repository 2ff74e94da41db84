"""Where the cycles of a run went, PE by PE, from its trace.

Every cycle between the start of the first task of a PE that counts and the end of the last one is
one of three: *transfer*, where words pass for which code stands still; *waiting*, where code stands
still, or none runs, and no word of this PE passes; *compute*, all else: scalar code and operations
on memory. Operations on microthreads count as transfer only while no code runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Span = tuple[int, int]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Split:
    """Cycles of a PE, or their mean over several."""

    compute: float
    transfer: float
    waiting: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.compute + self.transfer + self.waiting


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a file that a run with ``--trace`` wrote."""
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]


def split(events: Iterable[Event], tasks: Iterable[str]) -> Split:
    """The mean over the PEs that ran one of ``tasks``, from where it began to the end of the last
    task or operation. Raises ValueError where none did."""
    by_pe: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        by_pe[event["pid"], event["tid"] // 2].append(event)
    wanted = {*tasks}
    found = [
        _of_pe(mine)
        for mine in by_pe.values()
        if any(e["cat"] == "task" and e["name"] in wanted for e in mine)
        for mine in [_from_task(mine, wanted)]
    ]
    if not found:
        raise ValueError(f"no PE ran {', '.join(sorted(wanted))}")
    count = len(found)
    return Split(
        sum(one.compute for one in found) / count,
        sum(one.transfer for one in found) / count,
        sum(one.waiting for one in found) / count,
    )


def _from_task(events: list[Event], tasks: set[str]) -> list[Event]:
    """Those that begin with the first of ``tasks`` or later."""
    start = min(e["ts"] for e in events if e["cat"] == "task" and e["name"] in tasks)
    return [e for e in events if e["ts"] >= start]


def _of_pe(events: list[Event]) -> Split:
    """The cycles of one PE."""

    def spans(category: str) -> list[Span]:
        return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == category]

    tasks = _merged(spans("task"))
    still, moved = _length(spans("wait")), _length(spans("transfer"))
    busy = _length(tasks)
    whole = _merged([*tasks, *spans("microthread")])
    beside = _length(whole) - busy
    begun, ended = whole[0][0], whole[-1][1]
    idle = ended - begun - busy - beside
    return Split(busy - still - moved, moved + beside, still + idle)


def _merged(spans: list[Span]) -> list[Span]:
    """The spans in order, those that overlap joined."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _length(spans: list[Span]) -> int:
    return sum(end - start for start, end in _merged(spans))
