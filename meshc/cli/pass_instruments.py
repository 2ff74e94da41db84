"""The instruments that flags for looking at the passes stand for."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field

from meshc.cli.printing import message_objects, print_diagnostics, print_notes
from meshc.cli.progress import Progress
from meshc.driver import Check
from meshc.passes.instruments import Instrument, PrintAfter, Statistics, Timing
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import Diagnostics


@dataclass
class Watching:
    """The instruments that the flags ask for; ``timing`` is always there."""

    timing: Timing
    statistics: Statistics | None
    check: Check | None
    instruments: list[Instrument]
    options: argparse.Namespace
    start: float = field(default_factory=time.perf_counter)

    @staticmethod
    def of(options: argparse.Namespace, progress: Progress) -> Watching:
        """Instruments for ``options``. Fails with ``unknown-pass``."""
        timing = Timing()
        statistics = Statistics() if options.stats else None
        check = Check() if options.check else None
        found: list[Instrument] = [progress, timing]
        found += [i for i in (statistics, check) if i is not None]
        if options.print_ir_after_all or options.print_ir_after:
            found.append(PrintAfter(_to_stderr, _names(options)))
        return Watching(timing, statistics, check, found, options)

    @property
    def looks(self) -> bool:
        """Whether somebody asked to see what passes do, so that they have to run."""
        asked = self.options
        shown = asked.print_ir_after_all or asked.print_ir_after or asked.time_passes
        return bool(shown) or self.statistics is not None or self.check is not None

    def finish(self, report: Diagnostics) -> None:
        """Print what was gathered: messages, then tables."""
        print_diagnostics(report.messages, self.options.remarks)
        if self.statistics is not None:
            print_notes(self.statistics.table())
        if self.options.time_passes:
            print_notes(self.timing.table())
        if self.check is not None:
            print_notes(f"checked: {self.check.compared} passes compute what they were given")

    def outcome(self, files: list[str], report: Diagnostics) -> dict[str, object]:
        """What a command that ran passes did, as JSON values."""
        passes = [
            {"phase": t.phase, "pass": t.pass_text, "seconds": round(t.seconds, 6)}
            for t in self.timing.times
        ]
        return {
            "files": files,
            "seconds": round(time.perf_counter() - self.start, 6),
            "passes": passes,
            "remarks": message_objects(report.messages, "remark", "missed"),
            "warnings": message_objects(report.messages, "warning"),
        }


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)


def _names(options: argparse.Namespace) -> frozenset[str] | None:
    """Names for ``--print-ir-after``, None for all passes."""
    if options.print_ir_after_all:
        return None
    text = ",".join(options.print_ir_after)
    return frozenset(step.NAME for step in parse_pipeline(text, "--print-ir-after"))
