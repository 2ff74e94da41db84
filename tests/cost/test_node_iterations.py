"""Iterations of a server on a node of GPUs against schedules of the same batch."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.cost.expert_coverage import Coverage, independent_tokens
from meshc.cost.nodes.iteration_batches import Chunk
from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.nodes.overlap import baseline, fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import MeshcError

POLICIES = {"baseline": baseline, "fuse-only": fused_only, "tokenweave": best_schedule}
MODELS = ("llama-3.3-70b", "qwen3-235b-a22b")


@cache
def shape(model, layers=None):
    found = served_model(model)
    return found if layers is None else replace(found, layers=found.layers[:layers])


@cache
def costs(model, collectives, name="h100x8", layers=None):
    where = device(name)
    return NodeIterations(shape(model, layers), where, where.cores, collectives)


@cache
def ranks(model, name="h100x8", layers=None):
    where = device(name)
    return Ranks(shape(model, layers), where, where.cores)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", ["baseline", "fuse-only"])
@given(st.integers(0, 40), st.integers(1, 5000), st.integers(0, 3000), st.integers(0, 3000))
@settings(max_examples=15)
def test_kernels_in_turn_take_what_their_schedule_takes(
    model, policy, decodes, mean, start, tokens
):
    if not decodes + tokens:
        return
    chunks = [(start, start + tokens)] if tokens else []
    batch = (*[Chunk(mean - 1, mean)] * decodes, *(Chunk(*c) for c in chunks))
    load = costs(model, policy, layers=3).iteration(decodes, decodes * mean, chunks, range(3))
    head = ranks(model, layers=3).head(decodes).seconds if decodes else 0.0
    wanted = POLICIES[policy](ranks(model, layers=3), batch).seconds + head
    assert load.seconds == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [256, 2048, 8192])
def test_halves_take_what_the_best_schedule_takes(model, tokens):
    """Within 1 %: the first and the last half of all have nothing beside them."""
    found = costs(model, "tokenweave", layers=20).iteration(0, 0, [(0, tokens)], range(20)).seconds
    best = best_schedule(ranks(model, layers=20), (Chunk(0, tokens),)).seconds
    assert found == pytest.approx(best, rel=0.01)
    fused = costs(model, "fuse-only", layers=20).iteration(0, 0, [(0, tokens)], range(20)).seconds
    assert found <= fused


def test_layers_that_a_prompt_does_not_pass_only_decode():
    cost = costs("llama-3.3-70b", "baseline")
    alone = cost.iteration(8, 8000).seconds
    some = cost.iteration(8, 8000, [(0, 4096)], range(10)).seconds
    every = cost.iteration(8, 8000, [(0, 4096)], range(80)).seconds
    assert (some - alone) * 8 == pytest.approx(every - alone, rel=1e-9)
    first = cost.iteration(8, 8000, [(0, 4096)], range(80), 1)
    assert first.seconds > every


def test_bytes_and_arithmetic_are_those_of_the_model():
    """A prompt reads each weight once, of experts those that the law of routing says, and
    multiplies each row with each weight; a token that decodes takes two flops for each parameter
    that it passes."""
    model = shape("llama-3.3-70b")
    load = costs(model.name, "fuse-only").iteration(1, 1, [], range(0))
    weights = model.parameters - model.vocabulary * model.hidden  # the table is looked up in
    assert load.flops == pytest.approx(2 * weights, rel=0.001)
    assert load.bytes == pytest.approx(2 * weights, rel=0.002) and load.expert_bytes == 0
    joules = load.seconds * 8 * 294 + load.bytes * 3.14e-11
    assert load.joules == pytest.approx(joules)
    moe = costs("qwen3-235b-a22b", "tokenweave")

    def loaded(tokens):
        return shape("qwen3-235b-a22b").expert_bytes * Coverage(128, 8).of(tokens)

    whole = moe.iteration(0, 0, [(0, 2048)], range(94)).expert_bytes
    assert whole == pytest.approx(loaded(independent_tokens(2048)), 0.01)
    halves = moe.iteration(0, 0, [(0, 16384)], range(94)).expert_bytes
    assert halves == pytest.approx(2 * loaded(independent_tokens(8192)), 0.01)
    beside = moe.iteration(12, 12_000, [(0, 400)], range(94)).expert_bytes
    assert beside == pytest.approx(loaded(12 + independent_tokens(400)), 0.01)


def test_refusals():
    with pytest.raises(MeshcError, match="no collectives of baseline"):
        NodeIterations(shape(MODELS[0]), device("h100x8"), 8, "none")
    with pytest.raises(MeshcError, match="2 to 8"):
        NodeIterations(shape(MODELS[0]), device("h100x8"), 1, "baseline")
