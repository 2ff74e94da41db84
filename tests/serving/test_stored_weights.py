"""Weights of 8 and 4 bits in costs of serving: what is loaded and held, and nothing else."""

from dataclasses import replace

import pytest

from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.serving.stored_weights import BITS, stored
from meshc.support.diagnostics import MeshcError

QWEN = served_model("qwen3-30b-a3b")


def test_what_a_weight_takes_with_its_scales():
    """Of 128 x 128 weights: the scales beside them counted one by one."""
    of_blocks = {
        "bf16": 16 * 128 * 128,
        "fp8": 8 * 128 * 128 + 32,
        "int4": 128 * (128 * 4 + 16 + 4),
        "mxfp4": 128 * 4 * (32 * 4 + 8),
        "nvfp4": 128 * 8 * (16 * 4 + 8),
    }
    assert {name: bits * 128 * 128 for name, bits in BITS.items()} == of_blocks


def test_matrices_of_layers_and_experts_shrink_and_tables_do_not():
    experts = sum(x.experts * QWEN.expert_parameters(x) for x in QWEN.layers)
    shared = sum(map(QWEN.shared_parameters, QWEN.layers))
    tables = 2 * 151_936 * 2048
    assert experts + shared + tables == QWEN.parameters and QWEN.bytes == 2 * QWEN.parameters
    assert stored(QWEN, "", "") == QWEN == stored(QWEN, "bf16", "")
    assert stored(QWEN, "mxfp4", "").bytes == 2 * tables + 17 / 32 * (experts + shared)
    some = stored(QWEN, "", "mxfp4")
    assert some.bytes == 2 * (tables + shared) + 17 / 32 * experts
    assert stored(QWEN, "fp8", "nvfp4").expert_weight_bytes == 9 / 16
    assert some.on(2).bytes == some.bytes and some.kv_bytes == QWEN.kv_bytes


@pytest.mark.parametrize("kernels", [False, True])
def test_iterations_load_less_and_compute_as_much(kernels):
    def costs(model):
        if kernels:
            return NodeIterations(model, device("h100x8"), 8, "baseline")
        return IterationCost(model, device("h100x2"), 2)

    few = stored(QWEN, "fp8", "nvfp4")
    usual, less = costs(QWEN), costs(few)
    for asked in ((8, 8000), (0, 0, [(0, 512)], range(48)), (8, 8000, [(512, 1024)], range(12))):
        before, after = usual.iteration(*asked), less.iteration(*asked)
        assert after.flops == before.flops and after.seconds < before.seconds
        assert after.expert_bytes == pytest.approx(before.expert_bytes * 9 / 32)
        parameters = sum(map(usual.model.shared_parameters, QWEN.layers))
        shared = parameters * (2 - few.weight_bytes)
        saved = before.expert_bytes - after.expert_bytes
        routers = 48 * 2048 * 128 * (2 - few.weight_bytes)  # part of no kernel
        assert before.bytes - after.bytes == pytest.approx(saved + shared, abs=routers + 1)
    held = (usual.model.bytes - less.model.bytes) / (48 * usual.model.kv_bytes)
    assert less.kv_tokens - usual.kv_tokens == pytest.approx(held, abs=1)


def test_dense_models_have_weights_and_no_experts():
    dense = served_model("qwen3-8b")
    assert stored(dense, "int4", "").bytes < dense.bytes / 2
    with pytest.raises(MeshcError, match="has no experts"):
        stored(dense, "", "fp8")
    with pytest.raises(MeshcError, match="cannot be 'fp7'"):
        stored(replace(dense), "fp7", "")
