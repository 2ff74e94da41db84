"""The commands of "Into your own program", as they stand there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_driver import C
from pages import ROOT, blocks
from stand_in import stand_in

from meshc.backends.cuda.executor import CXX
from meshc.cli import main

MODEL = ROOT / "tests" / "data" / "tiny_cuda" / "llama-4h2"


@pytest.mark.slow
@pytest.mark.cuda_compiler
@pytest.mark.skipif(C.path() is None or CXX.path() is None, reason="there is no C++ compiler")
def test_the_commands_write_and_run_a_directory(tmp_path):
    out, driver = tmp_path / "out", tmp_path / "driver"
    known = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(driver)}
    known["PATH"] = f"{Path(sys.executable).parent}:{known['PATH']}"
    (text,) = (one for one in blocks("docs/own-program.md", "sh") if "--standalone" in one)
    compiling, *running = text.replace("MODEL", str(MODEL)).replace("DIR", str(out)).splitlines()
    made = subprocess.run(
        f"{sys.executable} -m {compiling}", shell=True, env=known, capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    stand_in(out, driver)
    said = [
        subprocess.run(line, shell=True, env=known, capture_output=True, text=True, check=False)
        for line in running
    ]
    assert [one.stderr for one in said] == ["", ""]
    assert said[0].stdout == said[1].stdout
    vocabulary = json.loads((out / "manifest.json").read_text())["vocabulary"]
    tokens = [int(token) for token in said[0].stdout.split(",")]
    assert 1 <= len(tokens) <= 8 and all(0 <= token < vocabulary for token in tokens)


@pytest.mark.models
@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_the_commands_deal_layers_to_nodes(tmp_path, capsys):
    """All nodes in one process; of torchrun tests/backends/cuda/test_cuda_nodes.py has the like."""
    (text,) = (one for one in blocks("docs/own-program.md", "sh") if "--nodes" in one)
    compiling, running, by_torchrun = text.splitlines()
    out = str(tmp_path / "out")
    assert main(compiling.replace("MODEL", str(MODEL)).replace("DIR", out).split()[1:]) == 0
    capsys.readouterr()
    assert main([*running.replace("DIR", out).split()[1:], "--weights", str(MODEL)]) == 0
    assert 1 <= len(capsys.readouterr().out.split(",")) <= 8
    assert by_torchrun.split("DIR/run.py")[1] == running.split("DIR")[1]
