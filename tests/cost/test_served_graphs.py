"""Shapes of served models, read off graphs, beside published counts and checkpoints."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.served_attention import GroupedAttention, LatentAttention
from meshc.cost.served_graphs import served_of
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import given_module
from meshc.driver.planning.parts import bytes_held, part_of
from meshc.driver.served_shapes import served_model
from meshc.frontend.checkpoints import catalogue_names
from meshc.ir.core import tensor_type
from meshc.ir.ops.graph import Matmul, Repeat, Softmax, TopK
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[1] / "data"
FOLDERS = sorted(f for kind in ("tiny_families", "tiny_experts") for f in (TINY / kind).iterdir())
PUBLISHED = {
    "codellama-34b": 33_743_970_304,
    "deepseek-v2-lite": 15_706_484_224,
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


def graph(model, **fields):
    request = CompileRequest(device="h100", target="cuda", dtype="bf16", **fields)
    return given_module(load_any(str(model), Diagnostics()), "decode", request, Diagnostics())


def test_every_model_of_the_catalogue_is_told_of():
    assert {*PUBLISHED} == {*catalogue_names()}


@pytest.mark.every_case
@pytest.mark.parametrize("name", PUBLISHED)
def test_matrices_are_those_that_are_published(name):
    found = served_model(name)
    assert found.name == name and found.parameters == pytest.approx(PUBLISHED[name], rel=4e-4)
    assert found.parameters < PUBLISHED[name]


def matrices(folder):
    """Values of the matrices in the checkpoint of ``folder``, by the header of the file, but for
    the table of positions and gains of each head, which are no product's."""
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    shapes = {name: one["shape"] for name, one in header.items() if name != "__metadata__"}
    return sum(
        prod(shape)
        for name, shape in shapes.items()
        if len(shape) > 1 and min(shape) > 1 and not name.endswith(("wpe.weight", "norm.weight"))
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
        ServedModel(
            "m", 512, GroupedAttention(8, 8, 64), 1000, (replace(with_gate, gated=gated),) * 4
        )
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


V3 = TINY / "real_configs" / "deepseek-v3.json"


@pytest.fixture
def deepseek_v3(tmp_path):
    (tmp_path / "config.json").write_text(V3.read_text())
    return served_model(str(tmp_path))


def test_latents_are_those_of_published_models(deepseek_v3):
    """DeepSeek-V3: 671 billion parameters, 37 of which a token passes, and 70,272 bytes of a token
    (arXiv 2505.09343, Table 1). DeepSeek-V2-Lite: 15.7 and 2.4 billion."""
    lite = served_model("deepseek-v2-lite")
    assert lite.attention == LatentAttention(16, 512, 128, 64, 128)
    assert deepseek_v3.attention == LatentAttention(128, 512, 128, 64, 128, 1536)
    assert deepseek_v3.parameters == pytest.approx(671e9, rel=1e-3)
    assert deepseek_v3.active_parameters == pytest.approx(37e9, rel=2e-2)
    assert deepseek_v3.kv_bytes * len(deepseek_v3.layers) == 70_272
    assert lite.parameters == pytest.approx(15.7e9, rel=1e-3)
    assert lite.active_parameters == pytest.approx(2.4e9, rel=0.12)


LATENT = sorted((TINY / "tiny_latent_experts").iterdir()) + [
    TINY / "tiny_cuda" / name for name in ("deepseek-4h", "deepseek-4h-low-rank")
]


@pytest.mark.parametrize("folder", LATENT, ids=lambda folder: folder.name)
def test_matrices_of_latents_are_those_of_the_checkpoint(folder):
    assert served_model(str(folder)).parameters == matrices(folder)


@pytest.mark.parametrize("gpus", [2, 8])
def test_ranks_hold_what_the_dealt_graph_holds(gpus):
    """Beside tables of the vocabulary, which ranks have whole, and norms."""
    request = CompileRequest(target="cuda", device="h100x8", dtype="bf16", gpus=gpus, seq=64)
    held = bytes_held(part_of(load_any("deepseek-v2-lite", Diagnostics()), request))
    words = ("embedding", "lm_head")
    weights = sum(v for k, v in held["weight"].items() if k not in words and "norm" not in k)
    model = served_model("deepseek-v2-lite").on(gpus)
    tables = 2 * model.vocabulary * model.hidden * 2
    assert weights * gpus - (model.bytes - tables) == pytest.approx(
        2 * 26 * model.hidden * 64 * (gpus - 1)  # of the router every rank has all
    )
    assert sum(held["state"].values()) * gpus == model.kv_bytes * 27 * 64


def test_other_attention_is_refused():
    module = graph("deepseek-v2-lite")
    module.attention = module.attention[:1]
    with pytest.raises(MeshcError, match="no decoder of grouped queries or latents"):
        served_of(module)


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


def operations(module):
    """Of a decode step: each matrix product of the graph, experts as many as a token takes."""
    times = {
        id(op): module.dims[loop.dim]
        for loop in module.function.body.ops
        if isinstance(loop, Repeat)
        for op in loop.regions[0].walk()
    }
    routed = next((op for op in module.walk() if isinstance(op, TopK)), None)
    found = 0.0
    for op in (op for op in module.walk() if isinstance(op, Matmul)):
        dims = {*tensor_type(op.result).dims, *op.contract}
        one = 2.0 * prod(module.dims[d] for d in dims) * times.get(id(op), 1)
        if routed is not None and routed.dim in dims and len(dims) > 4:
            one *= routed.count / module.dims[routed.dim]
        found += one
    return found


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "qwen3-30b-a3b", "llama-3-8b"])
def test_operations_of_a_step_are_those_of_its_graph(name):
    module = graph(name, seq=2048)
    costs = IterationCost(served_model(name), device("h100x2"), 1)
    assert costs.iteration(1, 2048).flops == pytest.approx(operations(module), rel=1e-9)


@pytest.mark.parametrize("start, stop", [(0, 5), (100, 101), (3000, 3512)])
def test_prompts_take_keys_of_heads_and_steps_take_latents(start, stop):
    own, made = LatentAttention(16, 512, 128, 64, 128), 128 + 128
    pairs = sum(token + 1 for token in range(start, stop))
    asking = 16 * pairs * 2 * ((512 + 64) + 512)
    heads = 16 * pairs * 2 * ((128 + 64) + 128) + 2 * start * 512 * 16 * made
    work = own.chunk(start, stop, None)
    assert work.flops == min(asking, heads)
    assert (work.values > 0) == (heads < asking) == (stop - start > 1)
    if work.values:
        assert work.values == 2 * 16 * made * stop
    assert own.step_flops * (stop - start) * stop >= asking
