"""Costs of iterations: coverage of experts, attention, memory, and what they were fitted to."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost.expert_coverage import Coverage, independent_tokens
from meshc.cost.served_attention import GroupedAttention, pairs_seen
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import MeshcError

QWEN, DENSE, GPT = (served_model(n) for n in ("qwen3-30b-a3b", "qwen3-8b", "gpt-oss-20b"))
H100X2 = device("h100x2")


@given(st.integers(1, 256), st.data())
def test_a_token_takes_as_many_experts_as_it_should(experts, data):
    top_k = data.draw(st.integers(1, experts))
    law = Coverage(experts, top_k)
    assert isclose(sum(law.inclusion), top_k, rel_tol=1e-9)
    assert all(0 < q <= 1 for q in law.inclusion)
    assert isclose(law.of(1), top_k / experts, rel_tol=1e-9) and law.of(0) == pytest.approx(0)


def test_coverage_grows_and_the_table_is_the_law():
    law = Coverage(128, 8)
    values = [law.of(n) for n in (1, 1.5, 2, 17, 100, 4095.5, 4096, 5000, 1e6)]
    assert values == sorted(values) and values[-1] <= 1
    for n in (1, 2, 50, 4095):
        assert law.of(n) == pytest.approx(law._exact(n), rel=1e-9)


def test_a_chunk_counts_as_no_more_tokens_than_it_has():
    counted = [independent_tokens(n) for n in (1, 2, 10, 100, 1000, 10_000)]
    assert counted[:2] == [1, 2] and counted == sorted(counted)
    assert all(c <= n for c, n in zip(counted, (1, 2, 10, 100, 1000, 10_000), strict=True))


@given(st.integers(0, 60), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 40)))
def test_pairs_that_attention_sees(start, length, window):
    pairs = sum(min(t + 1, window or t + 1) for t in range(start, start + length))
    assert pairs_seen(start, start + length, window) == pairs


def test_parameters_are_the_published_ones():
    """Norms, biases and sinks, which serving leaves out, are below a thousandth."""
    for model, published in ((QWEN, 30_532_122_624), (DENSE, 8_190_735_360), (GPT, 20_914_757_184)):
        assert model.parameters == pytest.approx(published, rel=1e-3)
    assert QWEN.active_parameters == pytest.approx(3.35e9, rel=0.01)
    assert QWEN.kv_bytes * 48 == 96 * 1024 and DENSE.experts == 0


def test_room_for_keys_and_values():
    cost = IterationCost(QWEN, H100X2, 2)
    room = 2 * 72e9 - QWEN.parameters * 2
    assert cost.kv_tokens == int(room // (96 * 1024))
    assert IterationCost(QWEN, H100X2, 1).kv_tokens < cost.kv_tokens / 4


def test_layers_that_no_prompt_passes_load_what_decoding_needs():
    cost = IterationCost(QWEN, H100X2, 2)
    decode = cost.iteration(8, 8000)
    everywhere = cost.iteration(8, 8000, [(0, 4096)], range(48))
    one_group = cost.iteration(8, 8000, [(0, 4096)], range(12))
    third = (everywhere.seconds - decode.seconds) / 4
    assert one_group.seconds - decode.seconds == pytest.approx(third, rel=1e-9)
    assert decode.expert_bytes < one_group.expert_bytes < everywhere.expert_bytes
    assert everywhere.expert_bytes <= QWEN.expert_bytes
    apart = cost.iteration(0, 0, [(0, 4096)], range(12))
    assert apart.expert_bytes < one_group.expert_bytes


def test_what_a_window_saves():
    whole = LayerShape(0, 0, 0, 1024, None)
    some = LayerShape(0, 0, 0, 1024, 128)
    models = [
        ServedModel("m", 512, GroupedAttention(8, 2, 64), 1000, (layer,) * 4)
        for layer in (whole, some)
    ]
    far, near = (IterationCost(m, H100X2, 2).iteration(4, 40_000) for m in models)
    assert far.bytes - near.bytes == pytest.approx(4 * (40_000 - 4 * 128) * models[0].kv_bytes)


def test_groups_of_unequal_layers_are_balanced_by_their_costs():
    moe, dense = LayerShape(64, 6, 1408, 2816, None), LayerShape(0, 0, 0, 10_944, None)
    model = ServedModel("m", 2048, GroupedAttention(16, 16, 128), 100_000, (dense, *[moe] * 3))
    costs = IterationCost(model, H100X2, 2).layer_costs()
    assert costs[0] < costs[1] == costs[2] == costs[3]


@pytest.mark.parametrize("name", ["ideal", "wse2", "h100"])
def test_what_is_no_node_is_refused(name):
    with pytest.raises(MeshcError, match="no node of GPUs"):
        IterationCost(QWEN, device(name), 1)


@pytest.mark.parametrize("gpus", [0, 3])
def test_gpus_that_are_not_there_are_refused(gpus):
    with pytest.raises(MeshcError, match="has 1 to 2 GPUs"):
        IterationCost(QWEN, H100X2, gpus)


def test_a_node_without_numbers_of_serving_is_told_so():
    with pytest.raises(MeshcError, match="device-number"):
        IterationCost(QWEN, device("h100x8"), 8)
