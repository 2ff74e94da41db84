"""The published numbers: every file can be read, and means what the papers print."""

import pytest

from meshc.published import SOURCES, table, tables

EVERY = [(source, one) for source in SOURCES for one in tables(source).values()]


@pytest.mark.every_case
@pytest.mark.parametrize(("source", "one"), EVERY, ids=lambda x: getattr(x, "name", x))
def test_rows_have_values_of_their_metrics(source, one):
    assert one.rows and one.title and one.paper
    for row in one.rows:
        assert row.values and row.values.keys() <= one.metrics.keys()
        assert row.calibrated <= row.values.keys()
    labels = [(tuple(row.conditions.items()), tuple(row.values)) for row in one.rows]
    assert len(set(labels)) == len(labels)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("source", "name", "where", "metric", "value"),
    [
        ("waferllm", "3", {"model": "llama-3-8b", "system": "T10", "side": 720}, "rate", 132.8),
        ("waferllm", "4", {"model": "qwen2-72b", "system": "Ladder", "side": 660}, "rate", 3.4),
        ("waferllm", "2", {"model": "llama-2-13b", "system": "T10", "answer": 2048}, "rate", 35.0),
        ("layered_prefill", "11", {"groups": 4}, "ttft_mean_s", 0.566),
        ("layered_prefill", "9", {"policy": "layered", "rate": 1.2, "device": "h100x8"},
         "tbt_mean_ms", 33.1),
        ("clusterfusion", "C.1", {"model": "llama-2-7b", "baseline": "MLC-LLM"}, "core", 1.41),
        ("tokenweave", "figure-21", {"tokens": 8192}, "faster", 1.16),
        ("recorded_h200", "own", {"batch": 16}, "us", 7376),
    ],
)  # fmt: skip
def test_values_of_the_papers(source, name, where, metric, value):
    (row,) = table(source, name).where(**where)
    assert row.number(metric) == value


def test_calibrated_values_are_every_second_of_a_series():
    rows = table("tokenweave", "figure-13").where(model="llama-3.3-70b", policy="tokenweave")
    assert [bool(row.calibrated) for row in rows] == [True, False, True, False, True, False, True]
