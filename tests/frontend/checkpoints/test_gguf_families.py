"""GGUF files of the families that are read: the same model, weights and answers as from the files
of Hugging Face, quantised too, and what is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed

from meshc.driver import Compiled, CompileRequest, compile_loaded, load_any
from meshc.driver.weights import IF_POSSIBLE, formats_to_keep
from meshc.frontend.checkpoints import (
    Checkpoint,
    ModelConfig,
    config_from_gguf,
    open_checkpoint,
    read_config,
)
from meshc.ir.printer import print_module
from meshc.support.diagnostics import Diagnostics, MeshcError

pytest.importorskip("gguf")
pytest.importorskip("safetensors")

import gguf
import gguf_checkpoints as checkpoints
import llama_cpp_files as files

pytestmark = pytest.mark.models

# In CI one of each family; the others are of the same tables.
OFTEN = (
    "gemma-6h2", "gemma2-3h3", "gemma3-3h1", "gpt2", "internlm2", "olmo2-5h1", "phi3-3h3",
    "stablelm-3h1", "starcoder2-5h1", "granite-6h2", "mixtral-5x2", "qwen2-moe", "qwen3-moe",
    "gpt-oss-5x2",
)  # fmt: skip
CASES = [
    pytest.param(name, marks=() if any(short in name for short in OFTEN) else pytest.mark.slow)
    for name in checkpoints.SAME
]
OTHERS = [name for name in checkpoints.SAME if name != "tiny_experts/mixtral-5x2"]
PROMPT = [3, 14, 15, 9, 26, 5, 31]


def same_maths(config: ModelConfig) -> ModelConfig:
    return replace(config, name="", bos_id=None, eos_ids=(), dtype=None)


def tensors_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def compiled(model: Path, mesh: str = "2x2", **options: Any) -> Compiled:
    request = CompileRequest(mesh=mesh, seq=12, dtype="f32", **options)
    return compile_loaded(load_any(str(model), Diagnostics()), request)


def logits(found: Compiled) -> np.ndarray:
    """Of the tokens behind a prompt, by the emitted Python program."""
    with found.load() as program:
        return program.generate(PROMPT, 4, ignore_eos=True).logits


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_the_model_and_the_weights_of_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    folder, file = checkpoints.write_both(name, tmp_path)
    wanted, found = read_config(folder), config_from_gguf(file)
    assert same_maths(found) == same_maths(wanted)
    expected, read = (
        tensors_of(open_checkpoint(*pair)) for pair in ((folder, wanted), (file, found))
    )
    assert list(read) == list(expected)
    for tensor, values in expected.items():
        np.testing.assert_array_equal(read[tensor], values, tensor)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name",
    ["tiny_experts/mixtral-5x2", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_pieces_are_the_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of stacked experts and of matrices that hold several weights."""
    monkeypatch.setattr("meshc.frontend.checkpoints.weights._PIECE_BYTES", 600)
    file = files.write_gguf(tmp_path / "m.gguf", *checkpoints.recorded(name), "Q8_0")
    checkpoint = open_checkpoint(file, config_from_gguf(file))
    count = 0
    for tensor, whole in tensors_of(checkpoint).items():
        pieces = list(checkpoint.pieces(tensor))
        joined = np.concatenate([piece.ravel() for piece in pieces])
        np.testing.assert_array_equal(joined, whole.ravel(), tensor)
        count += len(pieces)
    assert count > 3 * len(checkpoint.names())


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints.SAME)
def test_programs_answer_as_those_of_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    """And as transformers has answered, where the checkpoint is the recorded one."""
    folder, file = checkpoints.write_both(name, tmp_path)
    np.testing.assert_array_equal(logits(compiled(file)), logits(compiled(folder)))
    if not checkpoints.SAME[name]:
        recorded = json.loads((checkpoints.DATA / name / "expected.json").read_text())
        prompt = [int(i) for i in recorded["prompt_ids"]]
        count = len(recorded["tokens"])
        request = CompileRequest(mesh="3x2", seq=len(prompt) + count, dtype="f32")
        with compile_loaded(load_any(str(file), Diagnostics()), request).load() as program:
            found = program.generate(prompt, count, ignore_eos=True)
        assert list(found.tokens) == recorded["tokens"]
        first = np.array(recorded["prompt_logits"])
        np.testing.assert_allclose(found.logits[0], first, atol=2e-4 * np.abs(first).max())


WIDE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "vocab_size": 64, "num_hidden_layers": 2,
}  # fmt: skip
# Rows of all matrices fill blocks.
OFTEN_QUANTISED = ("tiny_families/phi3-5h1-window", "Q4_0")
WIDER: dict[str, dict[str, Any]] = {
    "tiny_scaled/granite-6h2-biased": {},
    "tiny_families/phi3-5h1-window": {"num_attention_heads": 2, "num_key_value_heads": 1},
    "tiny_families/olmo2-6h2": {"num_attention_heads": 2, "num_key_value_heads": 1},
    "tiny_experts/mixtral-5x2": {},
    "tiny_families/gemma-6h2": {},
}


def decoded(config: files.Config, tensors: files.Tensors, kind: str) -> files.Tensors:
    """The matrices as a quantised file has them: rows that are permuted, and halves of what is
    stored side by side, are quantised row by row, so the order of rows makes no difference."""
    wanted = gguf.GGMLQuantizationType[kind]

    def coded(name: str, tensor: np.ndarray) -> np.ndarray:
        if tensor.ndim < 2 or "block_sparse_moe.gate" in name:
            return tensor
        return np.asarray(gguf.quants.dequantize(gguf.quants.quantize(tensor, wanted), wanted))

    return {name: coded(name, tensor) for name, tensor in tensors.items()}


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(
            name, kind, marks=() if "phi3" in name and kind == "Q4_0" else pytest.mark.slow
        )
        for name in WIDER
        for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0")
    ],
)
def test_quantised_files(name: str, kind: str, tmp_path: Path) -> None:
    """As the decoded weights in the Hugging Face form, and where they stay quantised."""
    config = json.loads((checkpoints.DATA / name / "config.json").read_text())
    config |= {**WIDE, **WIDER[name], "dtype": "float32"}
    tensors = checkpoints.drawn(config, tmp_path / "shapes")
    file = files.write_gguf(tmp_path / "m.gguf", config, tensors, kind)
    folder = checkpoints.write_hugging_face(tmp_path / "hf", config, decoded(config, tensors, kind))
    wanted, plain = (logits(compiled(at, "1x2", phase="decode")) for at in (folder, file))
    np.testing.assert_array_equal(plain, wanted)
    if kind == "Q5_0":
        return
    kept = formats_to_keep(IF_POSSIBLE, file, config_from_gguf(file), None)
    names = {form.split("=")[0] for form in kept}
    experts = set() if "mixtral" in name else {"w_gate", "w_up", "w_down"}
    assert names >= {"wq", "wk", "wv", "wo"} | experts
    assert {form.split("=")[1] for form in kept} == {f"{kind.lower()}?"}
    found = compiled(file, "1x2", phase="decode", keep_quantised=kept)
    products = print_module(found.modules["decode"]).count("tile.dequantise")
    assert products == (5 if experts else 3)
    bound = 2e-6 * np.abs(wanted).max()
    np.testing.assert_allclose(logits(found), wanted, rtol=0, atol=bound)


Change = Callable[[gguf.GGUFWriter], None]


def with_keys(name: str, folder: Path, change: Change, **config: Any) -> Path:
    """The GGUF file of a recorded checkpoint with further keys, or of another ``config``."""
    known, tensors = checkpoints.recorded(name)
    return files.write_gguf(folder / "m.gguf", {**known, **config}, tensors, change=change)


def without(file: Path, key: str) -> Path:
    """``file`` with a key of another name, so that it lacks that one."""
    raw = file.read_bytes()
    assert raw.count(key.encode()) == 1
    file.write_bytes(raw.replace(key.encode(), b"x" * len(key)))
    return file


def nothing(writer: gguf.GGUFWriter) -> None:
    """No further keys."""


GEMMA2, GEMMA3 = "tiny_families/gemma2-3h3-capped-bf16", "tiny_families/gemma3-3h1-capped-bf16"
PHI3, PHI3_LONG = "tiny_families/phi3-3h3-short-partial", "tiny_families/phi3-4h2-long-bf16"
GRANITE, MIXTRAL = "tiny_scaled/granite-3h1-tied-bf16", "tiny_experts/mixtral-3x1-bf16"
STABLELM, GPT_OSS = "tiny_families/stablelm-6h2-biased", "tiny_gpt_oss/gpt-oss-5x2-yarn"
QWEN2_MOE = "tiny_experts/qwen2-moe-6x2"


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "key"),
    [
        (GEMMA3, "gemma3.attention.sliding_window"),
        (PHI3, "phi3.attention.sliding_window"),
        (PHI3, "phi3.rope.scaling.attn_factor"),
        (GRANITE, "granite.attention.scale"),
        (GRANITE, "granite.residual_scale"),
        (MIXTRAL, "llama.expert_used_count"),
        (QWEN2_MOE, "qwen2moe.expert_shared_feed_forward_length"),
        (GPT_OSS, "gpt-oss.rope.scaling.factor"),
        (GPT_OSS, "gpt-oss.expert_feed_forward_length"),
    ],
)
def test_keys_that_are_needed(name: str, key: str, tmp_path: Path) -> None:
    file = without(with_keys(name, tmp_path, nothing), key)
    found = diagnosed("config-missing-key", lambda: config_from_gguf(file))
    assert [f"'{key}'" in d.message for d in found if d.code == "config-missing-key"] == [True]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "code", "words", "change"),
    [
        (GEMMA2, "config-unsupported", "attention.sliding_window_pattern",
         lambda w: w.add_sliding_window_pattern(3)),
        (GEMMA3, "config-bad-value", "attention.sliding_window_pattern",
         lambda w: w.add_sliding_window_pattern([True, False])),
        (GRANITE, "config-unsupported", "without rotary positions",
         lambda w: w.add_rope_scaling_finetuned(False)),
        (STABLELM, "config-unsupported", "attention.scale", lambda w: w.add_attention_scale(0.5)),
        (MIXTRAL, "config-unsupported", "expert_gating_func",
         lambda w: w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)),
        (QWEN2_MOE, "config-bad-value", "expert_weights_norm",
         lambda w: w.add_float32("qwen2moe.expert_weights_norm", 1.0)),
        (GPT_OSS, "config-unsupported", "yarn_ext_factor",
         lambda w: w.add_rope_scaling_yarn_ext_factor(0.5)),
        (GPT_OSS, "config-unsupported", "scaling.attn_factor",
         lambda w: w.add_rope_scaling_attn_factors(1.5)),
        ("tiny_families/gpt2-5h-tied", "config-unsupported", "rope.freq_base",
         lambda w: w.add_rope_freq_base(1e4)),
        ("tiny_families/olmo2-6h2", "config-unsupported", "attention.sliding_window",
         lambda w: w.add_sliding_window(4096)),
        ("tiny_families/gemma-6h2", "config-unsupported", "rope_factors_long",
         lambda w: w.add_tensor("rope_factors_long.weight", np.ones(4, np.float32))),
    ],
)  # fmt: skip
def test_what_files_say_and_is_not_computed(
    name: str, code: str, words: str, change: Change, tmp_path: Path
) -> None:
    checkpoints.SAME.setdefault(name, {})
    file = with_keys(name, tmp_path, change)
    found = diagnosed(code, lambda: config_from_gguf(file))
    assert any(words in d.message for d in found)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (GEMMA2, {"num_hidden_layers": 27}, "26, 42, 46 layers, and this one has 27"),
        (GEMMA3, {"num_hidden_layers": 27}, "does not give 'score_scale'"),
        (MIXTRAL, {"num_experts_per_tok": 4}, "at most all experts"),
        (STABLELM, {"rope_parameters": {"partial_rotary_factor": 0.4}}, "an even number up to"),
        (PHI3, {"head_dim": 10}, "an even number up to the head size, 8"),
        (PHI3_LONG, {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 2.0],
         "long_factor": [1.0, 2.0, 3.0]}}, "are not 3 positive numbers in F32"),
        (GPT_OSS, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0,
         "beta_slow": 4.0, "original_max_position_embeddings": 32}}, "a number above 4"),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    known, tensors = checkpoints.recorded(name)
    layers = changes.get("num_hidden_layers", known["num_hidden_layers"])
    kept = {n: t for n, t in tensors.items() if _layer(n) < layers}
    file = files.write_gguf(tmp_path / "m.gguf", {**known, **changes}, kept)
    with pytest.raises(Exception) as caught:
        config_from_gguf(file)
    assert words in str(caught.value)
    assert type(caught.value).__name__ == "MeshcError"


def _layer(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else 0


BAD = (0, 1, 3, 1 << 30, -1.0, 0.0, float("nan"), float("inf"), 1e30, True, "x", [1, 2], [True])


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints.SAME)
def test_any_key_that_is_absent_or_otherwise(name: str, tmp_path: Path) -> None:
    """Is refused or makes a model that the language takes, whose weights may not be those."""
    config, tensors = checkpoints.recorded(name)
    kept = {n: t for n, t in tensors.items() if _layer(n) < 1}
    random = Random(name)
    refused = 0
    for number in range(80):

        def change(writer: gguf.GGUFWriter) -> None:
            key = random.choice([k for k in writer.kv_data[0] if not k.startswith("general.")])
            del writer.kv_data[0][key]
            bad = random.choice((None, *BAD))
            if bad is not None:
                kind = gguf.GGUFValueType.get_type(bad)
                writer.add_key_value(key, bad, kind)

        file = files.write_gguf(tmp_path / f"{number}.gguf", config, kept, change=change)
        try:
            found = config_from_gguf(file)
            open_checkpoint(file, found, layers=1)
        except MeshcError as error:
            assert all(d.help for d in error.diagnostics)
            refused += 1
    assert refused > 20
