"""``meshc run --profile`` of a program for wafers: cycles by op, and a trace."""

import json
import re
from pathlib import Path

import pytest

from meshc.cli import main

MODEL = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"
WORDS = ["run", str(MODEL), "--prompt-ids", "5,17", "--max-tokens", "2", "--ignore-eos"]


def test_cycles_by_op_add_up_to_those_of_a_step(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    words = [*WORDS, "--target", "csl", "--mesh", "2x2", "--seq", "24", "--phase", "decode"]
    words += ["--profile", str(trace)]
    assert main(words) == 0
    found = capsys.readouterr()
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+)  (.+)$", found.err, re.MULTILINE)
    *ops, whole = [(sum(map(int, numbers)), name) for *numbers, name in rows]
    assert whole[1] == "all" and abs(sum(n for n, _ in ops) - whole[0]) <= len(rows) * 2
    assert any(name.startswith("rms_scale %h, gemm %") for _, name in ops)
    runs = [e for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "run"]
    assert len(runs) == 4 * 3
    longest = max(e["dur"] for e in runs)
    assert 0.7 * whole[0] <= longest <= 1.3 * whole[0]
    _, _, predicted = found.err.partition("predicted")
    rows = re.findall(r"^ +(\d+) +(\d+) +[\d.]*  (.+)$", predicted, re.MULTILINE)
    cycles, bounds = ([int(row[n]) for row in rows if row[2] != "all"] for n in (0, 1))
    assert rows[-1] == (str(sum(cycles)), str(sum(bounds)), "all")
    assert sum(bounds) < sum(cycles) == pytest.approx(longest, rel=0.1)
    assert any(name.startswith("gemm %") for *_, name in rows)


def test_other_targets_have_no_profile(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main([*WORDS, "--mesh", "1x2", "--profile", str(trace)]) != 0
    assert "--profile is for the simulator of wafers" in capsys.readouterr().err


def test_a_prompt_and_its_tokens_are_two_programs(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    words = [*WORDS, "--target", "csl", "--mesh", "2x2", "--seq", "24", "--phase", "both"]
    words += ["--profile", str(trace)]
    assert main(words) == 1
    assert "let steps read the prompt: --phase decode" in capsys.readouterr().err
    assert not trace.exists()
