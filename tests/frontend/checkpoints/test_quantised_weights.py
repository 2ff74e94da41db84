"""AWQ, GPTQ and fp8 checkpoints of Hugging Face: values as their formats say, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_reference import DenseDecoder
from model_files import diagnosed, hf_tensors, model_config
from quantised_files import e4m3, fp8_parts, int4_parts, save

from meshc.frontend.checkpoints import Checkpoint, open_checkpoint, read_config
from meshc.ir.stored import E4M3, floats
from meshc.support.diagnostics import Diagnostics, MeshcError

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
}
WHOLE = {"group_size": -1}


def _groups(**weights: Any) -> dict[str, Any]:
    own = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, **weights}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": own, "input_activations": inputs}
    return {"config_groups": {"group_0": group}}


AUTO_ROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "int", "iters": 200,
    "autoround_version": "0.5.1", "packing_format": "auto_round:auto_gptq", "nsamples": 128,
    "act_bits": 16, "low_gpu_mem_usage": True, "sym": False,
}  # fmt: skip
NEWER_GPTQ = {
    "format": "gptq", "act_group_aware": True, "pack_dtype": "int32", "pack_impl": "cpu",
    "lm_head": False, "offload_to_disk": True, "meta": {"quantizer": ["gptqmodel:5.0.0"]},
    "provider": "auto-round", "hyb_act": True, "mock_quantization": False, "gptaq_alpha": 0.25,
}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "awq": (AWQ, "awq"),
    "awq, all inputs": ({**AWQ, **WHOLE}, "awq"),
    "gptq": (GPTQ, "gptq"),
    "gptq, all inputs": ({**GPTQ, **WHOLE}, "gptq"),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, "gptq_v2"),
    "gptq symmetric": ({**GPTQ, "sym": True}, "gptq symmetric"),
    "gptq reordered": ({**GPTQ, "desc_act": True}, "gptq reordered"),
    "gptq, newer": ({**GPTQ, **NEWER_GPTQ}, "gptq"),
    "gptq_v2, newer": ({**GPTQ, **NEWER_GPTQ, "format": "gptq_v2"}, "gptq_v2"),
    "awq, newer": ({**AWQ, "format": "gemm", "provider": "auto-round", "seqlen": 2048}, "awq"),
    "auto-round": (AUTO_ROUND, "gptq"),
    "auto-round symmetric": ({**AUTO_ROUND, "sym": True}, "gptq symmetric"),
    "auto-round as awq": ({**AUTO_ROUND, "packing_format": "auto_round:auto_awq"}, "awq"),
    "fp8 tensor": (FP8, "tensor"),
    "fp8 static": ({**FP8, "activation_scheme": "static"}, "tensor"),
    "fp8 block": ({**FP8, "weight_block_size": [16, 24]}, "block"),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "channel"),
    "compressed tensor": (
        {**COMPRESSED, **_groups(strategy="tensor"), "sparsity_config": {"format": "dense"}},
        "tensor",
    ),
    "compressed channel": ({**COMPRESSED, **_groups(strategy="channel")}, "channel"),
    "compressed block": (
        {**COMPRESSED, **_groups(strategy="block", block_structure=[16, 24])},
        "block",
    ),
}
QUANTISED = ("self_attn", "mlp")


def _tensors(kind: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tensors of a model of the kind, and what they mean under the names of plain ones."""
    quantization, form = KINDS[kind]
    stored: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}
    for seed, (name, value) in enumerate(hf_tensors(model_config()).items()):
        stem = name.removesuffix(".weight")
        if not any(part in name for part in QUANTISED):
            stored[name] = plain[name] = value
            continue
        if form in ("tensor", "channel", "block"):
            parts, plain[name] = fp8_parts(stem, value.shape, form, seed)
        else:
            parts, plain[name] = int4_parts(
                stem, value.shape, quantization["group_size"], form, seed
            )
        stored |= parts
    if kind == "fp8 static":
        stored["model.layers.0.mlp.up_proj.input_scale"] = np.ones((), np.float32)
    return stored, plain


def _open(folder: Path, tensors: dict[str, np.ndarray], quantization: object) -> Checkpoint:
    save(folder, tensors, quantization)
    return open_checkpoint(folder, read_config(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_tokens_are_those_of_the_definition(tmp_path: Path, kind: str) -> None:
    stored, plain = _tensors(kind)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = _open(tmp_path / "a", stored, KINDS[kind][0])
    wanted = _open(tmp_path / "b", plain, None)
    for name in wanted.names():
        np.testing.assert_array_equal(found.read(name), wanted.read(name), err_msg=name)
    tokens = [DenseDecoder(checkpoint).greedy([3, 14, 15], 5) for checkpoint in (found, wanted)]
    assert tokens[0] == tokens[1]


def test_blocks_of_128_whose_last_ones_are_cut(tmp_path: Path) -> None:
    """As those of DeepSeek-V3: 160 inputs are a block of 128 and one of 32."""
    config = model_config(hidden=160, heads=4, head_dim=40, kv_heads=4, layers=1)
    name = "model.layers.0.mlp.down_proj.weight"
    parts, meaning = fp8_parts(name.removesuffix(".weight"), (160, 64), "block", 1, (128, 128))
    tensors = {**hf_tensors(config), **parts}
    sizes = {"hidden_size": 160, "num_key_value_heads": 4, "num_hidden_layers": 1}
    save(tmp_path, tensors, {**FP8, "weight_block_size": [128, 128]}, **sizes)
    found = open_checkpoint(tmp_path, read_config(tmp_path))
    np.testing.assert_array_equal(found.read("w_down")[0], meaning.T)


def test_chunks_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshc.frontend.checkpoints.quantised.int4._CHUNK_ELEMENTS", 200)
    stored, plain = _tensors("gptq")
    up = "model.layers.0.mlp.up_proj.weight"
    found = _open(tmp_path, stored, GPTQ).read_layer("w_up", 0)
    np.testing.assert_array_equal(found, plain[up].T)


def test_numbers_of_e4m3() -> None:
    found = floats(np.arange(256, dtype=np.uint8).view(E4M3))
    assert found[:127].tolist() == [e4m3(code) for code in range(127)]
    assert found[128:255].tolist() == [-e4m3(code) for code in range(127)]
    assert np.isnan(found[[0x7F, 0xFF]]).all() and found[0x7E] == 448 and found[1] == 2.0**-9


def test_rounded_inputs_are_a_remark(tmp_path: Path) -> None:
    stored, _ = _tensors("fp8 tensor")
    report = Diagnostics()
    read_config(save(tmp_path, stored, FP8), report)
    assert [d.code for d in report.messages] == ["quantised-inputs"]


@pytest.mark.parametrize("scheme", ["static", {"num_bits": 8, "type": "float"}])
def test_scales_of_caches_are_passed_over(scheme: object, tmp_path: Path) -> None:
    stored, _ = _tensors("fp8 tensor")
    scales = {
        f"model.layers.0.self_attn.{name}": np.full(1, 0.5, np.float32)
        for name in (
            *("k_scale", "v_scale", "attn.k_scale", "k_proj.k_scale", "v_proj.output_scale"),
            *("k_zero_point", "v_zero_point", "prob_output_scale"),
        )
    }
    report = Diagnostics()
    form = {**FP8, "kv_cache_scheme": scheme}
    read_config(save(tmp_path, {**stored, **scales}, form), report)
    assert [d.code for d in report.messages] == ["quantised-inputs"] * 2
    checkpoint = _open(tmp_path, {**stored, **scales}, form)
    (tmp_path / "plain").mkdir()
    plain = _open(tmp_path / "plain", stored, FP8)
    for name in plain.names():
        np.testing.assert_array_equal(checkpoint.read(name), plain.read(name))


def test_biases_of_zeros_that_the_model_has_not(tmp_path: Path) -> None:
    """As older GPTQ files have them; others are still refused."""
    stored, _ = _tensors("gptq")
    bias = "model.layers.0.mlp.up_proj.bias"
    _open(tmp_path, {**stored, bias: np.zeros(64, np.float16)}, GPTQ)
    call = lambda: _open(tmp_path, {**stored, bias: np.ones(64, np.float16)}, GPTQ)  # noqa: E731
    diagnosed("weights-surplus-tensor", call)


UNKNOWN: dict[str, tuple[object, str]] = {
    "method": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, '"bitsandbytes"'),
    "no method": ({"bits": 4}, "null"),
    "method kind": ({"quant_method": ["awq"]}, "a list of 1"),
    "awq bits": ({**AWQ, "bits": 8}, "'bits' of the quantisation is 8; 4 is read"),
    "awq no bits": ({k: v for k, v in AWQ.items() if k != "bits"}, "'bits'"),
    "awq version": ({**AWQ, "version": "gemv"}, "'version'"),
    "awq zero point": ({**AWQ, "zero_point": False}, "'zero_point'"),
    "awq group": ({**AWQ, "group_size": 24}, "'group_size'"),
    "awq group kind": ({**AWQ, "group_size": True}, "'group_size'"),
    "awq unknown key": ({**AWQ, "rotated": True}, "'rotated'"),
    "gptq bits": ({**GPTQ, "bits": 3}, "'bits'"),
    "gptq format": ({**GPTQ, "checkpoint_format": "marlin"}, "'checkpoint_format'"),
    "gptq words": ({**GPTQ, "pack_dtype": "int16"}, "'pack_dtype'"),
    "gptq newer format": ({**GPTQ, "format": "marlin"}, "'format'"),
    "gptq rotation": ({**GPTQ, "rotation": "hadamard"}, "'rotation'"),
    "gptq floats": ({**GPTQ, "data_type": "mx_fp"}, "'data_type'"),
    "auto-round bits": ({**AUTO_ROUND, "bits": 2}, "'bits'"),
    "auto-round packing": ({**AUTO_ROUND, "packing_format": "auto_round:x"}, "'packing_format'"),
    "auto-round layers": ({**AUTO_ROUND, "extra_config": {"a": {"bits": 8}}}, "'extra_config'"),
    "compressed rotation": ({**COMPRESSED, "transform_config": {"a": 1}}, "'transform_config'"),
    "compressed zeros": (
        {**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}},
        "'sparsity_config'",
    ),
    "gptq per module": ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "'dynamic'"),
    "fp8 format": ({**FP8, "fmt": "e5m2"}, "'fmt'"),
    "fp8 block": ({**FP8, "weight_block_size": [128]}, "not two sizes"),
    "fp8 block size": ({**FP8, "weight_block_size": [0, 128]}, "not two sizes"),
    "compressed ints": ({**COMPRESSED, **_groups(type="int", strategy="channel")}, "'type'"),
    "compressed format": ({**COMPRESSED, "format": "pack-quantized"}, "'format'"),
    "compressed groups": ({**COMPRESSED, "config_groups": {}}, "'config_groups'"),
    "compressed strategy": ({**COMPRESSED, **_groups(strategy="group")}, "'strategy'"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_refused(tmp_path: Path, name: str) -> None:
    quantization, words = UNKNOWN[name]
    save(tmp_path, {}, quantization)
    found = diagnosed("config-unsupported", lambda: read_config(tmp_path))
    assert any(words in d.message for d in found)


@pytest.mark.parametrize("given", [3, "awq", [AWQ], True])
def test_a_config_that_is_no_object(tmp_path: Path, given: object) -> None:
    save(tmp_path, {}, given)
    diagnosed("config-bad-value", lambda: read_config(tmp_path))


STEM = "model.layers.0.mlp.up_proj"


def _changed(kind: str, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    stored, _ = _tensors(kind)
    for part, value in changes.items():
        stored.pop(f"{STEM}.{part}", None)
        if value is not None:
            stored[f"{STEM}.{part}"] = value
    return stored


I32, F16, F32 = np.int32, np.float16, np.float32
FALSE: dict[str, tuple[str, dict[str, Any], str]] = {
    "no scales": ("awq", {"scales": None}, "'scales' is missing"),
    "no zeros": ("gptq", {"qzeros": None}, "'qzeros' is missing"),
    "scales of other groups": ("awq", {"scales": np.ones((4, 64), F16)}, "32 inputs are 2 groups"),
    "zeros of other groups": ("gptq", {"qzeros": np.ones((2, 9), I32)}, "'qzeros' has the shape"),
    "words of floats": ("awq", {"qweight": np.ones((32, 8), F32)}, "has the type F32"),
    "words of one axis": ("awq", {"qweight": np.ones(32, I32)}, "'qweight' has the shape [32]"),
    "scales of ints": ("gptq", {"scales": np.ones((2, 64), I32)}, "has the type I32"),
    "groups of other inputs": ("gptq", {"g_idx": np.zeros(16, I32)}, "each of 32 inputs"),
    "no groups": ("gptq reordered", {"g_idx": None}, "'g_idx' is missing"),
    "fp8 of no scales": ("fp8 tensor", {"weight_scale": None}, "0 tensors are its scales"),
    "fp8 of two": ("fp8 tensor", {"weight_scale_inv": np.ones((), F32)}, "2 tensors"),
    "fp8 of three": ("fp8 tensor", {"weight_scale": np.ones(3, F32)}, "its scales have the shape"),
    "fp8 scale of ints": ("fp8 tensor", {"weight_scale": np.ones((), I32)}, "has the type I32"),
    "blocks": ("fp8 block", {"weight_scale_inv": np.ones((2, 4), F32)}, "not [4, 2]"),
}


@pytest.mark.parametrize("name", FALSE)
def test_tensors_that_do_not_fit_each_other(tmp_path: Path, name: str) -> None:
    kind, changes, words = FALSE[name]
    tensors = _changed(kind, **changes)
    call = lambda: _open(tmp_path, tensors, KINDS[kind][0])  # noqa: E731
    (found,) = diagnosed("quantised-weights-invalid", call)
    assert words in found.message and STEM in found.message


READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "groups beyond": ("gptq", {"g_idx": np.full(32, 2, I32)}, "beyond the 2"),
    "groups below": ("gptq", {"g_idx": np.full(32, -1, I32)}, "beyond the 2"),
    "zeros of 15": ("gptq", {"qzeros": np.full((2, 8), -1, I32)}, "zero point is 15"),
    "version of zeros": (
        "gptq symmetric",
        {"qzeros": np.full((2, 8), -0x77777778, I32)},
        "is 9, not 8: is 'checkpoint_format' right?",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_values_that_cannot_be_meant(tmp_path: Path, name: str) -> None:
    kind, changes, words = READ[name]
    checkpoint = _open(tmp_path, _changed(kind, **changes), KINDS[kind][0])
    (found,) = diagnosed("quantised-weights-invalid", lambda: checkpoint.read("w_up"))
    assert words in found.message


def test_fp8_without_a_config_is_not_read(tmp_path: Path) -> None:
    """Elements alone would be wrong by their scales."""
    stored, _ = _tensors("fp8 tensor")
    found = diagnosed("weights-unsupported-dtype", lambda: _open(tmp_path, stored, None))
    assert any("F8_E4M3" in d.message for d in found)


def test_a_file_that_is_cut_later(tmp_path: Path) -> None:
    checkpoint = _open(tmp_path, _tensors("awq")[0], AWQ)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100_000])
    diagnosed("safetensors-invalid", lambda: [checkpoint.read(n) for n in checkpoint.names()])


@pytest.mark.parametrize("kind", ["awq", "gptq reordered", "fp8 block"])
def test_damaged_files_are_diagnosed(tmp_path: Path, kind: str) -> None:
    """Bytes of the header or of what it describes, changed at random, never give another error."""
    quantization, _ = KINDS[kind]
    save(tmp_path, _tensors(kind)[0], quantization)
    file = tmp_path / "model.safetensors"
    sound = file.read_bytes()
    length = 8 + int.from_bytes(sound[:8], "little")
    random = np.random.default_rng(1)
    config, outcomes = read_config(tmp_path), set()
    for trial in range(16):
        damaged = bytearray(sound)
        for at in random.integers(0, length if trial % 2 else len(sound), 3):
            damaged[at] = random.choice(np.frombuffer(b'0189"]}F\x00\xff', np.uint8))
        file.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(tmp_path, config)
            for name in checkpoint.names():
                assert checkpoint.read(name).shape == checkpoint.shape(name)
            outcomes.add("")
        except MeshcError as error:
            outcomes |= {d.code for d in error.diagnostics}
    assert len(outcomes) > 1
