"""Predictions beside the published tables of layered prefill, on rows that nothing was fitted to.

Fewer runs than ``benchmarks/layered_prefill.py`` makes; docs/serving.md has its figures.
"""

import sys
from pathlib import Path
from statistics import mean

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import layered_prefill as benchmark

SEEDS = 3


@pytest.fixture(scope="module")
def rows():
    """The rows that tests look at."""
    with pytest.MonkeyPatch.context() as patch:
        looked_at = [row for row in benchmark.FACTS["serving"] if is_looked_at(row)]
        patch.setitem(benchmark.FACTS, "serving", looked_at)
        return benchmark.serving(requests=100, seeds=SEEDS, processes=1)


def is_looked_at(row):
    """Whether a row has the energy of both policies, or is of one of them at its usual chunk."""
    return row["table"] == "8" or row["policy"] == "layered" or row.get("chunk") == 512


def values(rows, metric, **wanted):
    """Comparisons of ``metric`` in the rows with these facts."""
    return [
        value
        for row, found in rows
        for value in found
        if value.what == metric
        and all(
            row.get(k, benchmark.QWEN if k == "model" else None) == v for k, v in wanted.items()
        )
    ]


def test_coverage_of_decode_batches():
    held = [v for v in benchmark.coverage() if not v.calibrated]
    assert len(held) == 5 and mean(abs(v.error) for v in held) < 0.035


def test_chunks_that_were_held_out():
    held = [v for v in benchmark.chunks() if not v.calibrated]
    assert len(held) == 4 and max(abs(v.error) for v in held) < 0.05


@pytest.mark.parametrize(
    ("metric", "most"), [("ttft_mean_s", 0.2), ("tbt_mean_ms", 0.15), ("tbt_p99_ms", 0.1)]
)
def test_layered_prefill_of_qwen(rows, metric, most):
    found = values(rows, metric, policy="layered", model=benchmark.QWEN)
    assert len(found) == 10 and not any(v.calibrated for v in found)
    assert mean(abs(v.error) for v in found) < most


def test_chunked_prefill_near_saturation(rows):
    found = values(rows, "ttft_mean_s", policy="chunked", chunk=512, model=benchmark.QWEN)
    assert len(found) == 5 and all(v.inside for v in found)


def test_energy_from_chunked_to_layered(rows):
    found = list(benchmark.energy_changes(rows))
    assert len(found) == 4 and all(abs(v.error) < 0.06 for v in found)
    assert mean(abs(v.error) for v in found) < 0.04


def test_a_dense_model_is_slower_in_layers(rows):
    for metric in ("ttft_mean_s", "tbt_mean_ms"):
        chunked, layered = values(rows, metric, model="qwen3-8b")
        assert layered.predicted > chunked.predicted
        assert chunked.calibrated and not layered.calibrated
        assert abs(layered.error) < 0.15 and abs(chunked.error) < 0.15


@pytest.mark.slow
def test_loads_of_experts():
    per_request = benchmark.loads(SEEDS, processes=1)
    table2 = [v for v in per_request if v.what.startswith("T2")]
    assert all(abs(v.error) < 0.1 for v in table2)
    arxiv = next(v for v in per_request if "arxiv" in v.what)
    assert abs(arxiv.predicted - arxiv.published) < 4


@pytest.mark.slow
def test_rates_at_which_service_levels_are_left():
    found = list(benchmark.limits(SEEDS, processes=1))
    for chunked, layered in zip(found[::2], found[1::2], strict=True):
        assert chunked.predicted < layered.predicted
    assert all(abs(v.error) < 0.1 for v in found if benchmark.QWEN in v.what)
