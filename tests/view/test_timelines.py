"""Timelines by op, held against what other parts of meshc say of the same run."""

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from viewed import data, page

from meshc.cli import main

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "tests" / "data" / "tiny" / "llama-9h3-tied")
RUN = ["run", TINY, "--target", "csl", "--mesh", "6x6", "--phase", "decode"]
PROMPT = ["--prompt-ids", "5,17,42", "--max-tokens", "2"]


def shown(folder):
    assert main(["view", str(folder)]) == 0
    return data((folder / "view.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A page of a run, and the trace of the same run that another class wrote, by core."""
    place = tmp_path_factory.mktemp("step")
    assert main([*RUN, *PROMPT, "--record", str(place / "out")]) == 0
    assert main([*RUN, *PROMPT, "--profile", str(place / "trace.json")]) == 0
    events = {}
    for event in json.loads((place / "trace.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            events.setdefault((event["args"]["column"], event["args"]["row"]), []).append(event)
    return shown(place / "out"), events


def last_step(events):
    """The events of a core in its last step, which begins with the task of that name."""
    begin = max(e["ts"] for e in events if e["cat"] == "task" and e["name"] == "run")
    return [event for event in events if event["ts"] >= begin]


def test_busy_cycles_are_those_of_the_trace(step):
    page, events = step
    (timeline,) = page["timelines"]
    rows = timeline["busy"]
    assert len(rows) == len(rows[0]) == 6
    for (x, y), mine in events.items():
        tasks = sum(e["dur"] for e in last_step(mine) if e["cat"] == "task")
        assert rows[y][x] == pytest.approx(tasks, rel=0.01)


def test_spans_of_a_core_add_up_to_its_trace(step):
    page, events = step
    (timeline,) = page["timelines"]
    kinds = timeline["kinds"]
    followed = 0
    for number, track in enumerate(timeline["tracks"]):
        place, _, words = track.partition(": ")
        x, y = (int(part.split()[1]) for part in place.split(", "))
        mine = [span for span in timeline["spans"] if span[0] == number]
        happened = last_step(events[x, y])
        sums = {kind: sum(s[2] for s in mine if kinds[s[4]] == kind) for kind in kinds}
        if words == "beside code":
            theirs = sum(e["dur"] for e in happened if e["cat"] == "microthread")
            assert sums["beside code"] == pytest.approx(theirs, rel=0.01)
            continue
        followed += 1
        of = {
            c: sum(e["dur"] for e in happened if e["cat"] == c)
            for c in ("task", "transfer", "wait")
        }
        assert sum(sums.values()) == pytest.approx(of["task"], rel=0.01)
        assert sums["transfer"] == pytest.approx(of["transfer"], rel=0.01)
        assert sums["waiting"] == pytest.approx(of["wait"], rel=0.01)
        ends = sorted((span[1], span[1] + span[2]) for span in mine)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert followed >= 6


def test_spans_are_of_ops(step):
    """Nearly all cycles are of an op that has a line in the last module, which names it."""
    page, _ = step
    (timeline,) = page["timelines"]
    lines = page["phases"][0]["modules"][-1]["text"].split("\n")
    for name, mine in zip(timeline["names"], timeline["lines"], strict=True):
        texts = [lines[line - 1] for line in mine]
        buffer = re.search(r"%[\w.]+", name)
        assert not mine or any(buffer[0] in text for text in texts), (name, texts)
    named = sum(span[2] for span in timeline["spans"] if timeline["lines"][span[3]])
    assert named > 0.95 * sum(span[2] for span in timeline["spans"])


def test_a_run_of_two_programs_or_of_another_target_is_refused(tmp_path, capsys):
    folder = str(tmp_path / "out")
    python = ["run", TINY, *PROMPT, "--record", folder]
    assert main(python) == 1
    assert "simulator of wafers" in capsys.readouterr().err
    both = [*RUN, *PROMPT, "--record", folder, "--profile", str(tmp_path / "trace.json")]
    assert main(both) == 1
    assert "give one of them" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_blocks_of_a_gpu_do_what_its_phases_cost():
    """Both layers of a tiny model are followed: means over all blocks are the costs of phases."""
    (phase,) = (p for p in data(page("cuda"))["phases"] if p["name"] == "decode")
    phases, blocks = [t for t in data(page("cuda"))["timelines"] if t["phase"] == "decode"]
    assert phases["kinds"] == blocks["kinds"] and len(blocks["tracks"]) >= 100
    costs = {row["op"]: row["parts"] for row in phase["costs"]["rows"]}
    assert set(blocks["names"]) == set(costs)
    lines = phase["modules"][-1]["text"].split("\n")
    for number, name in enumerate(blocks["names"]):
        assert all(any(one in lines[line - 1] for one in name.split(", "))
                   for line in blocks["lines"][number])  # fmt: skip
        for kind, cost in enumerate(costs[name]):
            mine = [s[2] for s in blocks["spans"] if s[3] == number and s[4] == kind]
            assert sum(mine) / len(blocks["tracks"]) == pytest.approx(cost, rel=1e-3, abs=2e-10)
    assert blocks["total"] == pytest.approx(phases["total"], rel=1e-6)


def test_an_iteration_of_a_node_is_what_schedule_says(tmp_path, capsys):
    command = ["schedule", "llama-3.3-70b", "--tokens", "4096", "--json"]
    assert main([*command, "--record", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)["timeline"]
    (timeline,) = shown(tmp_path / "out")["timelines"]
    spans = [
        [timeline["tracks"][t], timeline["names"][n], round(1e6 * a, 3), round(1e6 * d, 3), h]
        for t, a, d, n, h in timeline["spans"]
    ]
    assert spans == [
        [one["stream"], one["kernel"], one["start_us"], one["us"], one["half"]] for one in told
    ]


def test_a_served_trace_is_what_serve_trace_says(tmp_path, capsys):
    tiny = str(ROOT / "tests" / "data" / "tiny" / "llama-rope3")
    trace = str(ROOT / "tests" / "data" / "trace.csv")
    command = ["serve-trace", tiny, "--mesh", "2x2", "--trace", trace, "--json"]
    assert main([*command, "--record", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    (timeline,) = shown(tmp_path / "out")["timelines"]
    ends = [a + d for t, a, d, _, _ in timeline["spans"] if t == 0]
    assert ends == pytest.approx([one["ends_s"] for one in told["iterations"]])
    for number, request in enumerate(told["requests"], 1):
        mine = [span for span in timeline["spans"] if span[0] == number]
        assert timeline["tracks"][number] == f"request {request['request']}"
        begin, end = min(s[1] for s in mine), max(s[1] + s[2] for s in mine)
        assert begin >= request["arrival_s"] - 1e-9
        assert end == pytest.approx(
            next(i["ends_s"] for i in told["iterations"] if request["request"] in i["ended"])
        )
        decoded = [s for s in mine if timeline["kinds"][s[4]] == "decoding"]
        assert len(decoded) >= len(request["tokens"]) - 1


def test_a_simulated_server_is_what_its_rows_say(tmp_path, capsys):
    rows, folder = tmp_path / "rows.csv", tmp_path / "out"
    command = ["schedule", "qwen3-30b-a3b", "--rate", "2", "--requests", "6", "--seeds", "1"]
    assert main([*command, "--record", str(folder), "--per-request", str(rows)]) == 0
    (timeline,) = shown(folder)["timelines"]
    with open(rows, newline="", encoding="utf-8") as stream:
        told = list(csv.DictReader(stream))
    assert len(told) == len(timeline["tracks"]) - 1 == 6
    for track, row in enumerate(told, 1):
        mine = [span for span in timeline["spans"] if span[0] == track]
        assert mine[0][1] == pytest.approx(float(row["arrival_s"]))
        assert mine[0][2] == pytest.approx(float(row["ttft_s"]))
    assert main([*command, "--auto", "--record", str(tmp_path / "other")]) == 1
    assert "not of --auto" in capsys.readouterr().err
