"""Iterations on GPUs of a node: batches that are cut, waves, schedules of two streams."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.cost.nodes.iteration_batches import Chunk, cut, prompts, tokens_of
from meshc.cost.nodes.overlap import baseline, fused_only, overlapped
from meshc.cost.nodes.products import Product, ProductRates, Tile, waves
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import (
    best_schedule,
    boundaries,
    equal_split,
    extra_waves,
    threshold_tokens,
)
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import MeshcError

CHUNKS = st.builds(
    lambda start, size: Chunk(start, start + size), st.integers(0, 99), st.integers(1, 99)
)
BATCHES = st.lists(CHUNKS, min_size=1, max_size=8).map(tuple)


@cache
def ranks(model="llama-3.3-70b", name="h100x8", layers=None):
    shape = served_model(model)
    if layers is not None:
        shape = replace(shape, layers=shape.layers[:layers])
    where = device(name)
    return Ranks(shape, where, where.cores)


@given(BATCHES, st.data())
def test_a_cut_keeps_every_token_once(batch, data):
    at = data.draw(st.integers(0, tokens_of(batch)))
    first, second = cut(batch, at)
    assert tokens_of(first) == at
    assert all(chunk.tokens > 0 for chunk in (*first, *second))
    positions = [[*range(c.start, c.stop)] for c in batch]
    found = [[*range(c.start, c.stop)] for c in (*first, *second)]
    if len(found) > len(positions):  # one request goes on in the second half, behind the first
        joint = len(first) - 1
        found[joint : joint + 2] = [found[joint] + found[joint + 1]]
    assert found == positions


def waves_by_hand(rows, columns, tile, multiprocessors):
    """Blocks dealt one by one to the multiprocessor that is free first."""
    blocks = [(r, c) for r in range(0, rows, tile.rows) for c in range(0, columns, tile.columns)]
    taken = Counter(n % multiprocessors for n, _ in enumerate(blocks))
    return max(taken.values())


@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 9))
def test_waves_are_those_of_blocks_dealt_one_by_one(rows, columns, multiprocessors):
    tile = Tile(128, 64)
    shape = Product(rows, columns, 1)
    found = waves(shape, tile, multiprocessors)
    assert found == waves_by_hand(rows, columns, tile, multiprocessors)


def test_the_example_of_the_paper():
    """Ten blocks on four multiprocessors: three waves whole and smartly cut, four in halves."""
    rates = ProductRates(1e12, 4, 40.0, 1e12, 0.0)
    whole = Product(640, 64, 64)
    assert waves(whole, Tile(64, 64), 4) == 3
    assert extra_waves(rates, whole, 320, 4) == 1
    assert extra_waves(rates, whole, 256, 4) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60_000), st.sampled_from(["llama-3.3-70b", "qwen3-235b-a22b"]))
def test_no_cut_costs_a_wave(tokens, model):
    own = ranks(model, layers=2)
    for blocks in (2, 8):
        rest = own.multiprocessors - blocks
        whole = own.widest(own.model.layers[-1], tokens)
        for at in boundaries(own, tokens, blocks):
            assert 0 < at < tokens
            tiles = {
                own.rates.best_tile(whole._replace(rows=n), rest) for n in (tokens, at, tokens - at)
            }
            assert any(
                ceil(ceil(at / t.rows) * ceil(whole.columns / t.columns) / rest)
                + ceil(ceil((tokens - at) / t.rows) * ceil(whole.columns / t.columns) / rest)
                <= ceil(ceil(tokens / t.rows) * ceil(whole.columns / t.columns) / rest)
                for t in tiles
            )


@settings(max_examples=40, deadline=None)
@given(BATCHES.filter(lambda batch: tokens_of(batch) > 1), st.sampled_from([2, 4, 8]), st.data())
def test_streams_keep_their_order(batch, blocks, data):
    """No two kernels of a stream at once; nothing before what it needs; all work is there."""
    own = ranks(layers=3)
    at = data.draw(st.integers(1, tokens_of(batch) - 1))
    found = overlapped(own, batch, at, blocks)
    for stream in (COMPUTE, COMMUNICATION):
        spans = [span for span in found.spans if span.stream == stream]
        assert all(a.stop <= b.start + 1e-12 for a, b in itertools.pairwise(spans))
    for half in (0, 1):
        own_spans = sorted((s for s in found.spans if s.half == half), key=lambda s: s.start)
        assert all(a.stop <= b.start + 1e-12 for a, b in itertools.pairwise(own_spans))
        names = Counter(span.name for span in own_spans)
        assert names["all_reduce_norm"] == 6 and names["qkv"] == names["down"] == 3
    used = {span.stream: span.multiprocessors for span in found.spans}
    assert used[COMPUTE] + used[COMMUNICATION] == own.multiprocessors


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=6))
def test_the_choice_is_never_worse_than_the_fused_kernel(lengths):
    own, batch = ranks(layers=2), prompts(lengths)
    chosen = best_schedule(own, batch)
    assert chosen.seconds <= fused_only(own, batch).seconds < baseline(own, batch).seconds
    assert chosen.split is None or 0 < chosen.split < tokens_of(batch)


def test_sums_without_the_switch_take_longer():
    shape, where = served_model("llama-3.3-70b"), device("h100x8")
    peers = Ranks(shape, where, 8, in_switch=False)
    # Per direction 9/8 of the rows pass a link with the switch, 14/8 without.
    start = where.real("collective_seconds")
    with_switch = ranks().all_reduce(4096).seconds - start
    assert peers.all_reduce(4096).seconds - start == pytest.approx(with_switch * 14 / 9)


def test_the_threshold_is_where_cutting_begins():
    own = ranks()
    tokens = threshold_tokens(own)
    assert best_schedule(own, prompts([tokens])).split is not None
    assert best_schedule(own, prompts([tokens - 128])).split is None
    assert 512 < tokens <= 1024


def test_a_boundary_without_a_wave_is_better_than_the_middle():
    """With as many multiprocessors for sums, where the middle costs a wave."""
    own, batch = ranks("qwen2.5-72b"), prompts([8192])
    chosen = best_schedule(own, batch)
    blocks = min(span.multiprocessors for span in chosen.spans)
    whole = own.widest(own.model.layers[-1], 8192)
    assert extra_waves(own.rates, whole, 4096, own.multiprocessors - blocks) > 0
    assert equal_split(own, batch, blocks).seconds > chosen.seconds


@given(st.integers(2, 30_000))
@settings(max_examples=15, deadline=None)
def test_the_middle_is_tried_where_it_costs_no_wave(tokens):
    own, batch = ranks(layers=2), prompts([tokens])
    chosen = best_schedule(own, batch).seconds
    for blocks in (2, 4, 6, 8):
        if tokens // 2 in boundaries(own, tokens, blocks):
            assert chosen <= equal_split(own, batch, blocks).seconds


@pytest.mark.parametrize("tokens", [8192, 16384])
def test_long_prompts_are_faster_than_without_communication(tokens):
    batch = prompts([tokens])
    alone = baseline(ranks(), batch, communicates=False)
    assert best_schedule(ranks(), batch).seconds < alone.seconds


@pytest.mark.parametrize(
    ("model", "name", "gpus", "words"),
    [
        ("llama-3.3-70b", "wse2", 8, "no node of GPUs"),
        ("llama-3.3-70b", "h100x8", 1, "2 to 8"),
        ("llama-3.3-70b", "h100x8", 16, "2 to 8"),
        ("llama-3.3-70b", "h100x2", 2, "multiprocessors"),
    ],
)
def test_what_cannot_be_scheduled_is_said(model, name, gpus, words):
    with pytest.raises(MeshcError) as caught:
        Ranks(served_model(model), device(name), gpus)
    assert words in str(caught.value)
