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
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(e["name"].startswith("rms_scale %h, gemm %") for e in events if e["ph"] == "X")
    received, ends = check_messages(events)
    assert received == len(ends) > 100
    runs = [e for e in events if e["name"] == "run"]
    assert len(runs) == 4 * 3
    longest = max(e["dur"] for e in runs)
    assert 0.7 * whole[0] <= longest <= 1.3 * whole[0]
    _, _, predicted = found.err.partition("predicted")
    rows = re.findall(r"^ +(\d+) +(\d+) +[\d.]*  (.+)$", predicted, re.MULTILINE)
    cycles, bounds = ([int(row[n]) for row in rows if row[2] != "all"] for n in (0, 1))
    assert rows[-1] == (str(sum(cycles)), str(sum(bounds)), "all")
    assert sum(bounds) < sum(cycles) == pytest.approx(longest, rel=0.1)
    assert any(name.startswith("gemm %") for *_, name in rows)


def check_messages(events):
    """How many receives there are, of which each that ends an arrow ends as many cycles behind the
    beginning as it is far, at least; the arrows' ends."""
    spans = [e for e in events if e["ph"] == "X"]
    assert not any(".csl:" in e["name"] for e in spans)
    place = {(e["pid"], e["tid"]): (e["args"]["column"], e["args"]["row"]) for e in spans}
    begin = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = [(begin[e["id"]], e) for e in events if e["ph"] == "f"]
    assert len(begin) == len(ends)
    for start, end in ends:
        one, other = (place[e["pid"], e["tid"]] for e in (start, end))
        hops = abs(one[0] - other[0]) + abs(one[1] - other[1])
        assert hops > 0 and end["ts"] - start["ts"] >= hops and start["name"] == end["name"]
    moving = [e["name"] for e in spans if e["cat"] in ("transfer", "microthread")]
    return sum(name.count("receive @") for name in moving), ends


@pytest.mark.slow
def test_a_trace_has_a_group_of_tracks_for_each_region(tmp_path):
    """Messages that are received in pieces have no arrows."""
    trace = tmp_path / "trace.json"
    where = ["--target", "csl", "--seq", "24", "--phase", "decode", "--profile", str(trace)]
    assert main([*WORDS, *where, "--mesh", "r=2,y=3,x=2"]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert groups == {0: "region 0", 1: "region 1"}
    columns = {number: set() for number in groups}
    for event in events:
        if event["ph"] == "X":
            columns[event["pid"]].add(event["args"]["column"])
    assert len(columns[0]) == len(columns[1]) == 2 and not columns[0] & columns[1]
    received, ends = check_messages(events)
    assert 0.7 * received < len(ends) < received
    assert any(start["pid"] != end["pid"] for start, end in ends)


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
