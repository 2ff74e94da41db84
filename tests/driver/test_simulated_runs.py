"""``meshc run --target csl`` reads a prompt by the programs that take fewer predicted cycles."""

import json
from pathlib import Path

import pytest

from meshc.cli import main
from meshc.cli.commands import run
from meshc.driver import CompileRequest, cheapest, compile_loaded, load_any, simulated_run
from meshc.driver.simulated_runs import SimulatedRun
from meshc.support.diagnostics import Diagnostics

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"
REQUEST = CompileRequest(target="csl", mesh="3x3", dtype="f32", seq=16)


@pytest.fixture(scope="module")
def loaded():
    return load_any(str(TINY), Diagnostics())


def test_short_prompts_are_read_by_steps_and_long_ones_in_one_piece(loaded):
    report = Diagnostics()
    short = cheapest(loaded, REQUEST, [3], 2, (), report)
    assert [*short.modules] == ["decode"]
    (reading,) = (m for m in report.messages if m.code == "reading")
    step = json.loads(short.files["report.json"])["predicted_cycles"]
    assert simulated_run(short, [3], 2) == SimulatedRun(1, 4, 4 * step, 9)
    assert f"{4 * step:,} predicted cycles" in reading.message
    report = Diagnostics()
    long = cheapest(loaded, REQUEST, [15], 2, (), report)
    assert [*long.modules] == ["prefill", "decode"]
    assert all(m.code != "reading" for m in report.messages)
    piece = json.loads(long.files["prefill/report.json"])["predicted_cycles"]
    assert simulated_run(long, [15], 2) == SimulatedRun(2, 3, piece + 2 * step, 9)
    assert piece < 14 * step


def test_chunks_and_several_prompts_are_counted(loaded):
    chunked = compile_loaded(loaded, CompileRequest(**{**vars(REQUEST), "chunk": 6}))
    cycles = [
        json.loads(chunked.files[f"{phase}/report.json"])["predicted_cycles"]
        for phase in ("prefill", "decode")
    ]
    found = simulated_run(chunked, [1, 13, 8], 3)
    assert found == SimulatedRun(2, 4 + 9, 4 * cycles[0] + 9 * cycles[1], 9)


def test_what_takes_long_is_said_in_words():
    found = SimulatedRun(1, 8, 8 * 162_276, 96 * 96)
    assert found.words.startswith("about 2 min on the simulator: 8 launches, 1,298,208 predicted")


def test_the_command_takes_steps_unless_it_is_told(capsys, monkeypatch):
    monkeypatch.setattr(run, "_WORTH_SAYING", 0.0)
    facts = json.loads((TINY / "expected.json").read_text())
    words = ["run", str(TINY), "--target", "csl", "--mesh", "3x3", "--dtype", "f32", "--seq", "12"]
    words += ["--prompt-ids", ",".join(map(str, facts["prompt_ids"][:3])), "--max-tokens", "1"]
    words += ["--remarks", "--json"]
    answers = []
    for more in ([], ["--phase", "both"]):
        assert main([*words, *more]) == 0
        said = capsys.readouterr()
        answers.append(json.loads(said.out))
        assert ("remark[reading]" in said.err) == (not more)
        assert "remark[run-time]: about 1 s on the simulator: " in said.err
    assert answers[0] == answers[1]
    # How long the simulator takes is no time of a wafer.
    of_all = {key: answers[0][key] for key in ("seconds_per_token", "mesh", "backend")}
    assert of_all == {"seconds_per_token": None, "mesh": "3x3", "backend": "csl-sim"}
