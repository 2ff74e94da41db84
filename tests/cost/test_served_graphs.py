"""Shapes of served models, read off graphs, beside those that are read from configurations."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshc.cost.served_graphs import served_of
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import given_module
from meshc.driver.served_models import served_model, served_model_names
from meshc.frontend.checkpoints import catalogue_names
from meshc.ir.ops.graph import Softmax
from meshc.support.diagnostics import Diagnostics, MeshcError

SERVED = sorted({*served_model_names()} & {*catalogue_names()} - {"deepseek-v2-lite"})
FAMILIES = Path(__file__).parents[1] / "data" / "tiny_families"


def graph(model, **fields):
    request = CompileRequest(device="h100", target="cuda", dtype="bf16", **fields)
    return given_module(load_any(str(model), Diagnostics()), "decode", request, Diagnostics())


@pytest.mark.parametrize("name", SERVED)
def test_the_graph_says_what_the_configuration_says(name):
    found = served_of(graph(name, seq=256))
    assert replace(found, name=name) == served_model(name)


def test_requests_and_tokens_change_no_shape():
    assert served_of(graph("llama-3-8b", batch=4)) == served_of(graph("llama-3-8b", seq=64))
    assert len(served_of(graph("llama-3-8b", layers=3)).layers) == 3


@pytest.mark.parametrize("name", ["deepseek-v2-lite"])
def test_latent_attention_is_refused(name):
    with pytest.raises(MeshcError, match="no decoder of grouped queries"):
        served_of(graph(name))


@pytest.mark.parametrize("name", ["gpt2", "starcoder2"])
def test_feed_forward_parts_without_a_gate_are_refused(name):
    folders = [folder for folder in FAMILIES.iterdir() if folder.name.startswith(name)]
    assert folders
    with pytest.raises(MeshcError, match="has no gate"):
        served_of(graph(folders[0], seq=16))


@pytest.mark.parametrize(
    ("layers", "windowed"),
    [
        ({"every": 2}, [True, False, True, False]),
        ({"but": 3}, [True, True, False, True]),
        ({"after": 3}, [False, False, False, True]),
        ({}, [True] * 4),
    ],
)
def test_layers_have_the_window_that_their_softmax_has(layers, windowed):
    module = graph("llama-3-8b", layers=4)
    (scores,) = [op for op in module.walk() if isinstance(op, Softmax) and op.mask == "causal"]
    scores.window = 64
    for name, value in layers.items():
        setattr(scores, name, value)
    found = [layer.window for layer in served_of(module).layers]
    assert found == [64 if holds else None for holds in windowed]
