"""Predictions beside the published tables of layered prefill, on rows that nothing was fitted to.

Fewer runs than docs/reproduction.md has.
"""

from statistics import mean

import pytest

from meshc.driver.reproduction.servers import Servers
from meshc.published import table

SEEDS = 3
LAYERED = ("6", "8", "10", "11", "12")


@pytest.fixture(scope="module")
def servers():
    return Servers(SEEDS)


@pytest.fixture(scope="module")
def layered(servers):
    """Rows of Qwen3-30B-A3B under layered prefill."""
    sections = [servers.latencies(name) for name in LAYERED]
    return [row for section in sections for row in section.rows if row.what.startswith("layered")]


def test_coverage_of_decode_batches(servers):
    held = [row for row in servers.coverage().rows if row.counted]
    assert len(held) == 5 and mean(abs(row.error) for row in held) < 0.035


def test_chunks_that_were_held_out(servers):
    held = [row for row in servers.chunks().rows if row.counted]
    assert len(held) == 4 and max(abs(row.error) for row in held) < 0.05


@pytest.mark.parametrize(
    ("metric", "most"), [("ttft_mean_s", 0.2), ("tbt_mean_ms", 0.15), ("tbt_p99_ms", 0.1)]
)
def test_layered_prefill_of_qwen(layered, metric, most):
    found = [row for row in layered if row.metric == metric]
    assert len(found) == 10 and all(row.role == "held out" for row in found)
    assert mean(abs(row.error) for row in found) < most


def test_chunked_prefill_near_saturation(servers):
    names = ("2", "6", "8", "12")
    rows = [row for name in names for row in servers.latencies(name).rows if row.role == "claim"]
    assert len(rows) == 5 and all(row.holds for row in rows)


def test_energy_from_chunked_to_layered(servers):
    errors = [row.error for row in servers.energies().rows]
    assert len(errors) == 4 and all(abs(error) < 0.06 for error in errors)
    assert mean(map(abs, errors)) < 0.04


def test_a_dense_model_is_slower_in_layers(servers):
    rows = servers.latencies("5.13").rows
    for metric in ("ttft_mean_s", "tbt_mean_ms"):
        chunked, layered = (row for row in rows if row.metric == metric)
        assert layered.predicted > chunked.predicted
        assert (chunked.role, layered.role) == ("calibrated", "held out")
        assert abs(layered.error) < 0.15 and abs(chunked.error) < 0.15


@pytest.mark.slow
def test_loads_of_experts(servers):
    rows = [r for r in servers.latencies("2").rows if r.metric == "expert_gb_per_request"]
    assert len(rows) == 3 and all(abs(row.error) < 0.1 for row in rows)
    arxiv, _ = servers.savings().rows
    assert abs(arxiv.predicted - arxiv.published) < 4


@pytest.mark.slow
def test_rates_at_which_service_levels_are_left():
    rows = Servers(5 * SEEDS).limits().rows
    for chunked, layered in zip(rows[::2], rows[1::2], strict=True):
        assert chunked.predicted < layered.predicted
    own = table("layered_prefill", "figure-3-limits").rows
    named = [row for row, one in zip(rows, own, strict=True) if "model" not in one.conditions]
    assert len(named) == 4 and all(abs(row.error) < 0.1 for row in named)
