"""Passes that are run to find out what phases have in common are run once, and what they say is
said once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.printer import print_module
from meshc.passes import instruments
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.split_regions import SplitRegions
from meshc.support.diagnostics import Diagnostics

MODEL = str(Path(__file__).parents[2] / "examples" / "tiny_llama.mesh")
ASKED = {"mesh": "4x4", "seq": 16, "device": "wse3"}


@pytest.fixture
def runs(monkeypatch):
    """How often each pass ran."""
    counts = Counter()

    def counted(kind):
        own = kind.run

        def run(self, module, report):
            counts[kind.NAME] += 1
            return own(self, module, report)

        monkeypatch.setattr(kind, "run", run)

    counted(Partition)
    counted(SplitRegions)
    return counts


def compiled(watched=(), **asked):
    report = Diagnostics()
    found = compile_loaded(load_any(MODEL, report), CompileRequest(**asked), watched, report)
    return {phase: print_module(module) for phase, module in found.modules.items()}, report


def test_each_phase_is_laid_out_once(runs):
    compiled(target="csl", compile_to="tile", **ASKED)
    assert runs == {"partition": 2, "split-regions": 2}


def test_what_was_run_before_changes_neither_modules_nor_messages():
    """With instruments, which want to see every pass, each compile runs all of them in turn."""
    asked = {"target": "csl", "compile_to": "tile", **ASKED}
    modules, report = compiled(**asked)
    others, told = compiled([instruments.Timing()], **asked)
    assert modules == others and report.messages == told.messages
    assert len(report.messages) > 0


def test_of_a_phase_that_needs_fewer_regions_only_the_last_pass_runs_again(runs):
    """Alone the decode step needs two regions for three layers, and prefill three."""
    modules, _ = compiled(device="wse3", mesh="4x1", seq=32, dtype="f16", layers=3)
    assert runs == {"partition": 2, "split-regions": 3}
    assert all("mesh r = 3, y = 1" in text for text in modules.values())
