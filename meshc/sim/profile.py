"""Where the cycles of a run went, PE by PE, from its trace.

A *run* of a PE goes from the start of a task that is named to the end of the last task or operation
before that task starts again. Each of its cycles is one of three: *transfer*, where words pass for
which code stands still; *waiting*, where code stands still, or none runs, and no word of this PE
passes; *compute*, all else: scalar code and operations on memory. Operations on microthreads count
as transfer only while no code runs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Span = tuple[int, int]
Parts = tuple[float, float, float]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Split:
    """Cycles of a run, or their mean over several."""

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


def split(events: Iterable[Event], task: str) -> Split:
    """The mean over all runs of ``task`` on all PEs. Raises ValueError where there is none."""
    whole = by_place(events, task).values()
    return Split(
        sum(one.compute for one in whole),
        sum(one.transfer for one in whole),
        sum(one.waiting for one in whole),
    )


def by_place(events: Iterable[Event], task: str) -> dict[str, Split]:
    """The same by the places of transfers in the source: the code before each, then the time until
    its words have passed or, of one on a microthread, until the next transfer as far as no code
    runs. Code behind the last one of a run has the place ``""``."""
    runs = [run for mine in _by_pe(events) for run in _runs(mine, task)]
    if not runs:
        raise ValueError(f"no PE ran {task}")
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for run in runs:
        for place, parts in _stretches(run):
            for which, cycles in enumerate(parts):
                sums[place][which] += cycles / len(runs)
    return {place: Split(*parts) for place, parts in sums.items()}


def _by_pe(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each PE, in order."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        found[event["pid"], event["tid"] // 2].append(event)
    return [sorted(mine, key=lambda e: e["ts"]) for mine in found.values()]


def _runs(events: list[Event], task: str) -> list[list[Event]]:
    """The events of each run of ``task``."""
    found: list[list[Event]] = []
    for event in events:
        if event["cat"] == "task" and event["name"] == task:
            found.append([])
        if found:
            found[-1].append(event)
    return found


def _stretches(events: list[Event]) -> Iterator[tuple[str, Parts]]:
    """Compute, transfer and waiting of a run by stretches, with the place of their transfer."""
    running = _merged(_span(e) for e in events if e["cat"] == "task")
    moving = _merged(_span(e) for e in events if e["cat"] in ("task", "microthread"))
    now, last = moving[0][0], moving[-1][1]
    under_way = ""
    for event in events:
        if event["cat"] not in ("wait", "transfer", "microthread"):
            continue
        (start, end), place = _span(event), str(event["name"]).rpartition(" ")[2]
        start = max(now, start)
        compute, transfer, waiting = _before(running, moving, now, start)
        yield place, (compute, 0, 0)
        yield under_way or place, (0, transfer, waiting)
        now, under_way = start, place
        if event["cat"] == "wait":
            yield place, (0, 0, end - start)
            now, under_way = end, ""
        elif event["cat"] == "transfer":
            yield place, (0, end - start, 0)
            now, under_way = end, ""
    compute, transfer, waiting = _before(running, moving, now, last)
    yield "", (compute, 0, 0)
    yield under_way, (0, transfer, waiting)


def _before(running: list[Span], moving: list[Span], start: int, end: int) -> Parts:
    """The cycles of a stretch without a transfer that code waits for."""
    busy, either = _within(running, start, end), _within(moving, start, end)
    return busy, either - busy, end - start - either


def _span(event: Event) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap joined."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _within(spans: list[Span], start: int, end: int) -> int:
    """How much of ``spans``, in order and apart, lies between ``start`` and ``end``."""
    found, at = 0, max(0, bisect_right(spans, (start, end)) - 1)
    while at < len(spans) and spans[at][0] < end:
        found += max(0, min(end, spans[at][1]) - max(start, spans[at][0]))
        at += 1
    return found
