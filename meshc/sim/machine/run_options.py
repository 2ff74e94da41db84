"""Options of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.sim.machine.trace import Trace

BACKENDS = ("auto", "python", "c")
# About a second of the machine.
MAX_CYCLES = 1_000_000_000
MOST_THREADS_BY_DEFAULT = 4  # they meet after each cycle, and nobody has measured more


@dataclass(frozen=True)
class Options:
    """``strict``: what is only remarked otherwise stops the run. ``strict_queues``: queues hold
    what the hardware's do. ``cycles_file`` collects cycles and architecture of each run;
    ``trace_file`` receives a trace for Chrome or Perfetto, ``fabric_file`` a line of JSON for each
    run with what it left on the fabric. ``backend`` is auto, python or c; None is auto.
    ``max_cycles`` is how long the host waits for one thing, and how long a task may run.
    ``threads`` is how many the C machine may use, by default as the cores say, and the results are
    the same. Without ``files`` a run leaves no log in the working directory. ``timing`` names the
    timing model (``meshc.sim.timing``), None the default one. What ``tracer`` gives is told what
    happens, with no file.
    """

    strict_queues: bool = False
    cycles_file: str | None = None
    trace_file: str | None = None
    fabric_file: str | None = None
    backend: str | None = None
    strict: bool = False
    max_cycles: int = MAX_CYCLES
    threads: int | None = None
    files: bool = True
    timing: str | None = None
    tracer: Callable[[], Trace] | None = None

    def trace(self) -> Trace | None:
        """What is told all that happens in a run, if anybody wants to know."""
        if self.tracer is not None:
            return self.tracer()
        return Trace() if self.trace_file else None


USUAL = Options()
