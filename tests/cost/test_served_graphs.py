"""Shapes of served models, read off graphs, beside published counts and checkpoints."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.served_graphs import served_of
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import given_module
from meshc.driver.served_models import served_model
from meshc.frontend.checkpoints import catalogue_names
from meshc.ir.ops.graph import Softmax
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[1] / "data"
FOLDERS = sorted(f for kind in ("tiny_families", "tiny_experts") for f in (TINY / kind).iterdir())
PUBLISHED = {
    "codellama-34b": 33_743_970_304,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-13b": 13_015_864_320,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "mixtral-8x22b": 140_630_071_296,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
}
"""Published numbers of parameters: of these norms and biases are no matrices."""
LATENT = ("deepseek-v2-lite",)


def graph(model, **fields):
    request = CompileRequest(device="h100", target="cuda", dtype="bf16", **fields)
    return given_module(load_any(str(model), Diagnostics()), "decode", request, Diagnostics())


def test_every_model_of_the_catalogue_is_told_of():
    assert {*PUBLISHED} | {*LATENT} == {*catalogue_names()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_matrices_are_those_that_are_published(name):
    found = served_model(name)
    assert found.name == name and found.parameters == pytest.approx(PUBLISHED[name], rel=4e-4)
    assert found.parameters < PUBLISHED[name]


def matrices(folder):
    """Values of the matrices in the checkpoint of ``folder``, by the header of the file, but for
    the table of positions, which is no product's."""
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    shapes = {name: one["shape"] for name, one in header.items() if name != "__metadata__"}
    return sum(
        prod(shape)
        for name, shape in shapes.items()
        if len(shape) > 1 and min(shape) > 1 and not name.endswith("wpe.weight")
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_matrices_are_those_of_the_checkpoint(folder):
    found = served_model(str(folder))
    assert found.parameters == matrices(folder)
    assert found.layers[0].gated != folder.name.startswith(("gpt", "nemotron", "starcoder2"))


def test_what_a_part_without_a_gate_takes():
    """Two matrices of three, and one product of two into the features."""
    with_gate = LayerShape(0, 0, 0, 1024, None)
    models = [
        ServedModel("m", 512, 8, 8, 64, 1000, (replace(with_gate, gated=gated),) * 4)
        for gated in (True, False)
    ]
    more, less = (model.parameters for model in models)
    assert more - less == 4 * 512 * 1024
    node = device("h100x8")
    costs = [NodeIterations(model, node, 2, "baseline").iteration(1, 100) for model in models]
    assert costs[0].flops - costs[1].flops == pytest.approx(2 * 4 * 512 * 1024)
    shapes = [Ranks(model, node, 2).widest(model.layers[0], 5).columns for model in models]
    assert shapes == [1024, 512]


def test_requests_and_tokens_change_no_shape():
    assert served_of(graph("llama-3-8b", batch=4)) == served_of(graph("llama-3-8b", seq=64))
    assert len(served_of(graph("llama-3-8b", layers=3)).layers) == 3


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_is_refused(name):
    with pytest.raises(MeshcError, match="no decoder of grouped queries"):
        served_of(graph(name))


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
