"""The line on the terminal during long runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from csl_runner import single

from meshc.sim.host import run_progress
from meshc.sim.machine.machine import Machine
from meshc.sim.stored_programs import load_program


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_long_runs_show_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 4.2, 5.0])
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: next(clock))
    out = Terminal()
    line = run_progress.Progress(1000, out)
    for cycles in (1_000, 8_000, 8_400, 10_000):
        line.show(cycles)
    shown = out.getvalue()
    assert "8,000 cycles on 1,000 PEs, 2.0 million PE-cycles per second" in shown
    assert "10,000 cycles" in shown
    assert " 1,000 cycles" not in shown and "8,400" not in shown
    line.close()
    assert out.getvalue().endswith("\r\x1b[2K")


def test_progress_is_silent_where_nobody_looks() -> None:
    out = io.StringIO()
    line = run_progress.Progress(4, out)
    line._next = 0.0
    line.show(1)
    line.close()
    assert out.getvalue() == ""


def test_machines_report_to_the_watcher(tmp_path: Path) -> None:
    pe = "fn run() void { sys.unblock_cmd_stream(); } comptime { @export_symbol(run); }"
    single(tmp_path, pe, run="fn()void")
    machine = Machine(load_program(tmp_path))
    seen: list[int] = []
    machine.watch = seen.append
    for time in range(0x1100):
        machine.at(time, lambda now: None)
    machine.run_to_rest()
    assert seen == [0xFFF]
