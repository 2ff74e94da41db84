"""The kernel that ClusterFusion publishes: its findings follow from device numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost.cluster_sizes import (
    Attention,
    attention_bytes,
    link_bytes_per_second,
    rows_cost,
    step_cost,
    traffic,
)
from meshc.devices import device

H100, H200 = device("h100"), device("h200")
SIZES = (1, 2, 4, 8, 16)
# Blocks of the published kernel: 101,312 bytes of shared memory and 128 threads, two on a core.
PUBLISHED_RESIDENT = 2


def mha(heads: int, hidden: int | None = None, head: int = 128) -> Attention:
    return Attention(hidden or heads * head, heads, heads, head)


@pytest.mark.parametrize("context", [4096, 16384])
@pytest.mark.parametrize(("heads", "best"), [(32, 4), (64, 4), (128, 2)])
def test_figure_11(heads: int, best: int, context: int) -> None:
    """Four blocks are best for 32 and 64 heads, two for 128; eight and sixteen are worse."""
    seconds = {
        n: step_cost(H100, mha(heads), context, n, resident=PUBLISHED_RESIDENT).total for n in SIZES
    }
    assert min(seconds, key=seconds.__getitem__) == best
    assert min(seconds[8], seconds[16]) > seconds[best]


def test_bytes_are_counted() -> None:
    """Llama-2-7B at 4K: 134 MB of weights and 67 MB of caches."""
    assert attention_bytes(mha(32), 4096) == 2 * (4 * 4096 * 4096 + 2 * 4096 * 4096)


@given(st.integers(64, 16384), st.sampled_from(SIZES), st.sampled_from([1, 2]))
def test_time_grows_with_the_context(context: int, cluster: int, resident: int) -> None:
    short, long = (
        step_cost(H100, mha(32), c, cluster, resident=resident).total
        for c in (context, context + 64)
    )
    assert short < long


def test_requests_share_the_weights_but_not_the_caches() -> None:
    def seconds(batch: int, context: int) -> float:
        shape = Attention(4096, 32, 32, 128, batch)
        return step_cost(H100, shape, context, 4, resident=2).total

    assert seconds(1, 64) < seconds(16, 64) < 1.2 * seconds(1, 64)
    few, many = (attention_bytes(Attention(4096, 32, 32, 128, b), 16384) for b in (1, 16))
    assert 0.9 * many / few < seconds(16, 16384) / seconds(1, 16384) < many / few


def test_arithmetic_takes_no_longer_than_the_bytes() -> None:
    """What the model leaves out: of 16 vectors on tensor cores, of 8 query heads on CUDA cores."""
    for one in (H100, H200):
        per_byte = one.read_bytes_per_second / (one.cores * one.clock_hz)  # cycles of a core
        products = 16 / 2 * per_byte / one.macs("f16", "f32")
        attention = 8 * 2 / 4 * per_byte / one.macs("f32")
        assert products < 1 / 13 and 0.3 < attention < 0.6


def test_bytes_between_blocks_of_llama() -> None:
    """One head per cluster of four: 96 of 384 rows each, 128 sums, a weight and a maximum; every
    block sends its part to, or has it read by, each other one."""
    assert traffic(mha(32), 4) == 4 * 12 * (96 + 130)
    assert traffic(mha(32), 1) == 0
    shared = Attention(4096, 32, 8, 128, batch=2)
    assert traffic(shared, 2) == 4 * 2 * (768 + 2 * 520)


def test_bandwidth_between_known_sizes() -> None:
    known = dict(H100.clusters.bytes_per_second)
    assert link_bytes_per_second(H100, 2) == known[2]
    assert link_bytes_per_second(H100, 16) == known[16]
    assert known[16] < link_bytes_per_second(H100, 8) < link_bytes_per_second(H100, 4) < known[2]
    flat = H100.with_numbers(cluster_bytes_per_second="4:3e12")
    assert [link_bytes_per_second(flat, n) for n in (2, 4, 16)] == [3e12] * 3


def test_rows_of_the_step() -> None:
    """Feed-forward of Llama-2-7B: 270.5 MB at what kernels reach, and two launches' latency."""
    seconds = rows_cost(H200, [(4096, 22016), (11008, 4096)]).total
    stream = 2 * 3 * 4096 * 11008 / H200.read_bytes_per_second
    assert stream < seconds < stream + 2e-6
