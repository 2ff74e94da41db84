"""Options of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """``strict``: what is only remarked otherwise stops the run. ``strict_queues``: queues hold
    what the hardware's do. ``cycles_file`` collects cycles and architecture of each run;
    ``trace_file`` receives a trace for Chrome or Perfetto; ``report_folder`` a page. ``backend`` is
    auto, python or c; without one the environment decides.
    """

    strict_queues: bool = False
    cycles_file: str | None = None
    trace_file: str | None = None
    report_folder: str | None = None
    backend: str | None = None
    strict: bool = False
