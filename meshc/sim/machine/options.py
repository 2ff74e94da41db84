"""Options of a run."""

from __future__ import annotations

from dataclasses import dataclass

BACKENDS = ("auto", "python", "c")


@dataclass(frozen=True)
class Options:
    """``strict_queues``: queues hold what the hardware's do. ``cycles_file`` collects the cycles
    of each run; ``trace_file`` receives a trace for Chrome or Perfetto; ``report_folder`` a page.
    ``backend`` is auto, python or c; without one the environment decides.
    """

    strict_queues: bool = False
    cycles_file: str | None = None
    trace_file: str | None = None
    report_folder: str | None = None
    backend: str | None = None
