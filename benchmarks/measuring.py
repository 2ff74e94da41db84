"""What the benchmarks share: medians, peak memory, tables."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

MIB = 1 << 20


@dataclass(frozen=True)
class Times:
    """Seconds of repeated runs: by the clock, and of the processor over all threads."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def wall_median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)


def interleaved(tasks: Sequence[Callable[[], object]], repeats: int) -> list[Times]:
    """Run the tasks in turn, ``repeats`` times after one warm-up.

    In turn, so that whatever else the machine does at the time falls on all of them alike.
    """
    measured: list[list[tuple[float, float]]] = [[] for _ in tasks]
    for round_ in range(repeats + 1):
        for task, found in zip(tasks, measured, strict=True):
            wall, cpu = perf_counter(), process_time()
            task()
            if round_:
                found.append((perf_counter() - wall, process_time() - cpu))
    return [Times(tuple(w for w, _ in f), tuple(c for _, c in f)) for f in measured]


def peak_bytes() -> int:
    """Most memory this process has held so far (resident set)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as text in aligned columns."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
