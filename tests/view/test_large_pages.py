"""Pages of real sizes, opened in a browser without a window."""

import json
import re
import time

import pytest
from test_browser import BROWSER, shown_at
from viewed import ROOT, data

from meshc.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium is installed"),
]

LLAMA = ["compile", "llama-3-8b", "--target", "csl", "--phase", "decode"]
LLAMA += ["--dtype", "f16", "--seq", "1024"]
TRACE = str(ROOT / "tests" / "data" / "trace.csv")
TINY = str(ROOT / "tests" / "data" / "tiny" / "llama-rope3")
SMOLLM2 = ["run", "smollm2-135m", "--target", "csl", "--phase", "decode", "--mesh", "96x96"]
SMOLLM2 += ["--dtype", "f16", "--seq", "64", "--prompt", "Paris", "--max-tokens", "1"]
RECORDED = {
    "a step on a simulated wafer": SMOLLM2,
    "regions of a wafer": [*LLAMA, "--device", "wse3", "--mesh", "r=6,y=360,x=360"],
    "a whole wafer": [*LLAMA, "--device", "wse2", "--mesh", "750x990", "--layers", "1"],
    "a GPU": ["compile", "llama-3-8b", "--target", "cuda", "--device", "h200", "--seq", "4096"],
    "a node": ["schedule", "llama-3.3-70b", "--tokens", "8192"],
    "a server": ["serve-trace", TINY, "--mesh", "2x2", "--weights", TINY, "--trace", TRACE],
}


def a_case(name):
    return pytest.param(name, marks=[pytest.mark.smollm2] if RECORDED[name] is SMOLLM2 else [])


@pytest.mark.every_case
@pytest.mark.parametrize("name", [a_case(name) for name in RECORDED])
def test_a_page_of_real_size(name, tmp_path):
    """In ten seconds of processor time and 5 MB, without an error on the console; an op is found by
    its source line and emitted lines, memory is that of the report, and cycles in which code ran
    are those of the spans of the cores that are followed."""
    command, folder = RECORDED[name], tmp_path / "out"
    recording = ["--record", "-o"] if command[0] == "compile" else ["--record"]
    assert main([*command, *recording, str(folder)]) == 0
    begin = time.process_time()
    assert main(["view", str(folder)]) == 0
    assert time.process_time() - begin < 10
    text = (folder / "view.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    found = data(text)
    shown_at(folder, "overview", tmp_path / "overview")
    if not found["phases"]:
        (timeline, *_) = found["timelines"]
        seen = shown_at(folder, "timeline", tmp_path / "timeline")
        assert timeline["name"] in seen.main and timeline["spans"]
        return
    if name == "a GPU":
        blocks = next(t for t in found["timelines"] if "blocks" in t["name"])
        assert len(blocks["tracks"]) > 60 and blocks["total"] > 0
    for timeline in found["timelines"]:
        shown_at(folder, "timeline/0", tmp_path / "timeline")
        if "busy" in timeline:
            assert busy_of_spans(timeline) == pytest.approx(busy_of_map(timeline), rel=0.01)
    phase = found["phases"][0]
    last = phase["modules"][-1]
    lines = last["text"].split("\n")
    line = next(n for n, words in enumerate(lines, 1) if words.strip().startswith("tile.gemm"))
    seen = shown_at(folder, f"passes/0//{line}", tmp_path / "passes")
    assert lines[line - 1].strip() in seen.texts["chosen"]
    _, source, number, *_ = next(place for place in last["places"] if place[0] == line)
    words = found["sources"][source]["text"].split("\n")[number - 1].strip()
    assert words in seen.texts["source"]
    file, _, first, _ = next(entry for entry in phase["emitted"] if entry[1] == line)
    assert found["files"][file]["text"].split("\n")[first - 1].strip() in seen.texts["emitted"]
    seen = shown_at(folder, "memory/0", tmp_path / "memory")
    report = folder / "report.json"
    if report.is_file():
        memory = json.loads(report.read_text())["memory"]
        assert phase["memory"]["left"] == memory["left"]
        uses = phase["memory"]["uses"]
        assert sum(uses.values()) == memory["data"] + memory["padding"] + memory["code"]["bytes"]
        assert str(memory["left"]) in re.sub(r"[,\u202f\u00a0 ]", "", seen.main)


def core_of(track):
    """Column and row of the core of a track."""
    return tuple(int(part.split()[1]) for part in track.partition(": ")[0].split(", "))


def busy_of_spans(timeline):
    """Cycles in which code of the cores that are followed ran, by their spans."""
    beside = timeline["kinds"].index("beside code")
    found = {core_of(track): 0 for track in timeline["tracks"]}
    for track, _, cycles, _, kind in timeline["spans"]:
        found[core_of(timeline["tracks"][track])] += cycles if kind != beside else 0
    assert len(found) >= 6
    return found


def busy_of_map(timeline):
    """The same by the map of all cores."""
    return {(x, y): timeline["busy"][y][x] for x, y in map(core_of, timeline["tracks"])}
