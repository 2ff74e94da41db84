"""The choice of dataflow and cluster size: ClusterFusion's findings follow from device numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost.clusters import (
    Attention,
    attention_bytes,
    candidates,
    choose,
    link_bytes_per_second,
    misfits,
    rows_cost,
    step_cost,
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


@pytest.mark.parametrize("target", [H100, H200], ids=lambda d: d.name)
@pytest.mark.parametrize("context", [4096, 16384])
@pytest.mark.parametrize(("heads", "best"), [(32, 4), (64, 4), (128, 2)])
def test_choice_for_emitted_kernels(target, heads: int, best: int, context: int) -> None:
    choice = choose(target, mha(heads, hidden=4096), context)
    assert choice is not None
    assert (choice.dataflow, choice.cluster, choice.waves) == ("split_token", best, 1)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_split_token_wins_as_the_context_grows(cluster: int) -> None:
    """Section C.2: nearly equal when short, split by head ever slower when long."""
    shape = Attention(4096, 32, 32, 128)
    excess = []
    for context in (1024, 2048, 4096, 8192, 16384):
        token, head = (
            step_cost(H100, shape, context, cluster, flow, 2).total
            for flow in ("split_token", "split_head")
        )
        excess.append(head - token)
    assert all(e > 0 for e in excess)
    assert excess == sorted(excess)


def test_split_head_wins_where_scores_are_few() -> None:
    """A short cache and a small model: its bytes are fewer."""
    shape = Attention(128, 2, 2, 64)
    flows = [choose(H100, shape, context, cluster=2).dataflow for context in (16, 64, 4096)]
    assert flows == ["split_head", "split_head", "split_token"]


def test_bytes_are_counted() -> None:
    """Llama-2-7B at 4K: 134 MB of weights and 67 MB of caches."""
    assert attention_bytes(mha(32), 4096) == 2 * (4 * 4096 * 4096 + 2 * 4096 * 4096)


@given(
    st.sampled_from([64, 96, 128, 256]),
    st.sampled_from([(8, 8), (32, 8), (32, 32), (9, 3), (64, 64), (16, 2)]),
    st.sampled_from([512, 576, 2048, 4096]),
    st.integers(1, 4),
    st.integers(64, 32768),
)
def test_no_choice_is_faster_than_memory(head, heads, hidden, batch, context) -> None:
    shape = Attention(hidden, *heads, head, batch)
    least = attention_bytes(shape, context) / H200.read_bytes_per_second
    found = candidates(H200, shape, context)
    assert all(c.seconds > least for c in found)
    assert all(c.memory.fits and c.blocks * c.heads == heads[0] * c.cluster for c in found)
    assert choose(H200, shape, context) in [*found, None]


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


def test_short_rings_do_not_fill_the_bandwidth() -> None:
    """Eight requests of Llama-3-8B leave blocks of 113 KiB rings of three tiles of 8 KiB, of which
    two are on their way: a third of what an H200 asks, as 128 blocks are one on a core."""
    shape, context = Attention(4096, 32, 16, 128, 8), 4096
    (short,) = (
        c for c in candidates(H200, shape, context, 8, resident=2, heads=2) if c.resident == 2
    )
    assert (short.memory.stages, short.memory.tile_bytes) == (3, 8192)
    full = step_cost(H200, shape, context, 8, resident=2).total
    streamed = attention_bytes(shape, context) / H200.read_bytes_per_second * 132 / 128
    assert short.seconds - full == pytest.approx(2 * streamed)
    best = choose(H200, Attention(4096, 32, 8, 128, 8), context)
    assert best.seconds < short.seconds and best.memory.bytes_in_flight >= H200.bytes_in_flight
    # Without that number nothing is known of rings.
    assert choose(H200.with_numbers(bytes_in_flight=0), shape, context).seconds <= full


def test_arithmetic_takes_no_longer_than_the_bytes() -> None:
    """What the model leaves out: of 16 vectors on tensor cores, of 8 query heads on CUDA cores."""
    for one in (H100, H200):
        per_byte = one.read_bytes_per_second / (one.cores * one.clock_hz)  # cycles of a core
        products = 16 / 2 * per_byte / one.macs("f16", "f32")
        attention = 8 * 2 / 4 * per_byte / one.macs("f32")
        assert products < 1 / 13 and 0.3 < attention < 0.6


def test_bandwidth_between_known_sizes() -> None:
    known = dict(H100.clusters.bytes_per_second)
    assert link_bytes_per_second(H100, 2) == known[2]
    assert link_bytes_per_second(H100, 16) == known[16]
    assert known[16] < link_bytes_per_second(H100, 8) < link_bytes_per_second(H100, 4) < known[2]
    flat = H100.with_numbers(cluster_bytes_per_second="4:3e12")
    assert [link_bytes_per_second(flat, n) for n in (2, 4, 16)] == [3e12] * 3


@pytest.mark.parametrize(
    ("shape", "cluster", "flow", "words"),
    [
        (Attention(4096, 32, 32, 80), 4, "split_token", "a head of 80 values is none of"),
        (Attention(4096, 32, 5, 128), 4, "split_token", "32 query heads do not divide over 5"),
        (Attention(4096, 130, 2, 128), 4, "split_token", "registers: 65 query heads share"),
        (Attention(4096, 32, 2, 128), 4, "split_head", "registers: 16 query heads share"),
        (Attention(4100, 32, 32, 128), 4, "split_token", "4100 is no whole number of eights"),
        (Attention(4096, 32, 32, 128, 17), 4, "split_token", "17 requests is more than 16"),
        (Attention(8192, 64, 64, 128, 16), 4, "split_token", "COLUMNS takes 262144"),
        (Attention(4096, 32, 32, 128), 3, "split_token", "h100 has 1, 2, 4, 8, 16"),
        (Attention(4104, 32, 32, 128), 4, "split_head", "4104 output columns over 4 blocks"),
        (Attention(4096, 32, 32, 96), 16, "split_head", "96 lanes of a head over 16 blocks"),
        (Attention(4096, 32, 32, 128), 1, "split_head", "one block has no lanes"),
    ],
)
def test_what_does_not_fit_is_said(shape, cluster, flow, words) -> None:
    found = misfits(H100, shape, cluster, flow, 4096)
    assert any(words in reason for reason in found), found
    assert choose(H100, shape, 4096, cluster, flow, heads=shape.group) is None


@pytest.mark.parametrize("context", [1024, 4096, 16384])
def test_clusters_share_a_key_head_where_cores_would_be_idle(context: int) -> None:
    """Eight key heads in clusters of eight have 64 of 132 cores; of 16, not all run at once."""
    shape = Attention(4096, 32, 8, 128)
    chosen, alone = choose(H200, shape, context), choose(H200, shape, context, heads=shape.group)
    assert chosen.heads < shape.group == alone.heads
    assert chosen.blocks > 100 and chosen.seconds < 0.9 * alone.seconds
    assert attention_bytes(replace(shape, kv_heads=32 // chosen.heads), context) > attention_bytes(
        shape, context
    )


def test_a_share_of_a_key_head() -> None:
    shape = Attention(4096, 32, 8, 128)
    assert {c.heads for c in candidates(H200, shape, 64)} == {1, 2, 4}
    assert {c.heads for c in candidates(H200, shape, 64, dataflow="split_head")} == {4}
    assert candidates(H200, shape, 64, heads=3) == []
    assert candidates(H200, shape, 64, dataflow="split_head", heads=2) == []


def test_rows_of_the_step() -> None:
    """Feed-forward of Llama-2-7B: 270.5 MB at what kernels reach, and two launches' latency."""
    seconds = rows_cost(H200, [(4096, 22016), (11008, 4096)]).total
    stream = 2 * 3 * 4096 * 11008 / H200.read_bytes_per_second
    assert stream < seconds < stream + 2e-6
