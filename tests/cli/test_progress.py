"""The line on the terminal while something is compiled."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from meshc.cli import progress
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import Diagnostics

MATMUL = str(Path(__file__).parents[2] / "examples" / "matmul.mesh")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_line_moves_while_programs_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress, "_MOVES_S", 0.01)

    def moves(within_s: float) -> bool:
        before, end = len(shown.getvalue()), time.monotonic() + within_s
        while len(shown.getvalue()) == before and time.monotonic() < end:
            time.sleep(0.01)
        return len(shown.getvalue()) > before

    with progress.Progress() as line:
        line.say("reading")
        assert not moves(0.1)
        for _ in range(2):
            line.behind("writing")
            assert "writing" in shown.getvalue() and moves(10) and moves(10)
            line.written()
            assert not moves(0.1)
        line.behind("writing")
    assert not moves(0.1)


def test_a_compile_says_when_it_writes_and_when_that_is_done() -> None:
    said: list[str] = []

    class Listener(Instrument):
        def behind(self, work: str) -> None:
            said.append(work)

        def written(self) -> None:
            said.append("done")

    request = CompileRequest(target="csl", mesh="2x2")
    compile_loaded(load_any(MATMUL, Diagnostics()), request, [Listener()])
    assert said == ["writing csl for 2x2 and counting its cycles", "done"]
