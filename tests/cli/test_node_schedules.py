"""``meshc schedule --tokens``: an iteration on a node of GPUs, from the command line."""

import json

import pytest
from matplotlib.figure import Figure

from meshc.cli import main
from meshc.serving import plots

MODEL = "llama-3.3-70b"


def schedule(capsys, *words, code=0):
    assert main(["schedule", *words]) == code
    return capsys.readouterr()


def test_json_has_latencies_and_a_timeline(capsys):
    words = [MODEL, "--policy", "tokenweave", "--tokens", "8192", "--json"]
    first = schedule(capsys, *words).out
    found = json.loads(first)
    assert found["latency_ms"] < found["no_communication_ms"] < found["baseline_ms"]
    assert found["speedup"] == pytest.approx(found["baseline_ms"] / found["latency_ms"], abs=1e-3)
    assert 0 < found["split"] < 8192 and found["threshold_tokens"] <= 1024
    last = max(s["start_us"] + s["us"] for s in found["timeline"])
    assert last == pytest.approx(found["latency_ms"] * 1e3 - 1000, rel=1e-4)  # iteration_seconds
    assert schedule(capsys, *words).out == first


@pytest.mark.parametrize("policy", ["baseline", "fuse-only"])
def test_other_policies_stay_whole(capsys, policy):
    words = [MODEL, "--policy", policy, "--tokens", "2048", "--device", "h100x4", "--json"]
    found = json.loads(schedule(capsys, *words).out)
    assert found["split"] is None and found["threshold_tokens"] is None
    assert (found["speedup"] == 1) == (policy == "baseline")


def test_chunks_are_iterations(capsys):
    words = [MODEL, "--tokens", "5000", "--chunk", "2048", "--json"]
    found = json.loads(schedule(capsys, *words).out)
    assert [one["tokens"] for one in found["iterations"]] == [2048, 2048, 904]
    assert found["latency_ms"] == pytest.approx(sum(o["latency_ms"] for o in found["iterations"]))


def test_the_timeline_is_written(capsys, tmp_path):
    trace, plots = tmp_path / "t.json", tmp_path / "plots"
    words = ["mixtral-8x22b", "--tokens", "8192", "--trace", str(trace), "--plots", str(plots)]
    out = schedule(capsys, *words).out
    assert "times faster than baseline" in out and "experts, half 1" in out
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {0, 1}
    assert sum(event["name"] == "all_reduce_norm" for event in spans) == 2 * 2 * 56
    picture = (plots / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    schedule(capsys, *words)
    assert (plots / "timeline.png").read_bytes() == picture


def test_the_timeline_says_whose_colors_are_whose(capsys, tmp_path, monkeypatch):
    drawn = []

    def figure(*args, **kwargs):
        drawn.append(Figure(*args, **kwargs))
        return drawn[-1]

    monkeypatch.setattr(plots, "Figure", figure)
    schedule(capsys, "mixtral-8x22b", "--tokens", "8192", "--plots", str(tmp_path / "plots"))
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["half 0", "half 1"]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "tokenweave"], "say how many tokens it has: --tokens 4096"),
        (["--tokens", "0"], "--tokens is 0, not 1 to"),
        (["--tokens", "64", "--chunk", "0"], "--chunk is 0, not 1 to"),
        (["--tokens", "64", "--rate", "2"], "--rate: of a stream of requests"),
        (["--tokens", "64", "--auto"], "--auto: of a stream of requests"),
        (["--tokens", "64", "--policy", "layered"], "baseline, fuse-only, tokenweave"),
        (["--tokens", "64", "--trace", "sharegpt"], "whose name ends in .json"),
        (["--tokens", "64", "--device", "wse3"], "no node of GPUs"),
        (["--tokens", "1000000", "--chunk", "1"], "more than 4096 chunks"),
    ],
)
def test_mistakes_are_said_in_words(capsys, words, said):
    assert said in schedule(capsys, MODEL, *words, code=1).err
