"""GGUF files of every family that is read, from recorded checkpoints: the same model and the same
weights as from Hugging Face files, and what is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed

from meshc.frontend.checkpoints import (
    Checkpoint,
    ModelConfig,
    config_from_gguf,
    open_checkpoint,
    read_config,
)

pytest.importorskip("gguf")
pytestmark = pytest.mark.models

import llama_cpp_files as files  # noqa: E402  (needs the gguf package)

DATA = Path(__file__).parents[2] / "data"
# Recorded checkpoint, and what of its config is otherwise so that a GGUF file can say it.
SAME: dict[str, dict[str, Any]] = {
    "tiny_dense/mistral-6h2": {"sliding_window": None},
    "tiny_families/gemma-4h1-untied-bf16": {"tie_word_embeddings": True},
    "tiny_families/gemma-6h2": {},
    "tiny_families/gemma2-3h3-capped-bf16": {"num_hidden_layers": 26, "query_pre_attn_scalar": 6},
    "tiny_families/gemma2-6h2-window": {
        "num_hidden_layers": 42, "query_pre_attn_scalar": 8, "tie_word_embeddings": True,
    },
    "tiny_families/gemma3-3h1-capped-bf16": {
        "num_hidden_layers": 26, "sliding_window_pattern": 6, "query_pre_attn_scalar": 6,
    },
    "tiny_families/gemma3-6h2-window": {
        "num_hidden_layers": 62, "sliding_window_pattern": 6, "query_pre_attn_scalar": 5,
    },
    "tiny_families/gpt2-5h-tied": {},
    "tiny_families/internlm2-6h2": {"rope_scaling": None},
    "tiny_families/olmo2-5h1-tied-bf16": {},
    "tiny_families/olmo2-4h2-biased": {},
    "tiny_families/phi3-3h3-short-partial": {},
    "tiny_families/phi3-4h2-long-bf16": {},
    "tiny_families/phi3-5h1-window": {},
    "tiny_families/stablelm-3h1-parallel-bf16": {},
    "tiny_families/stablelm-6h2-biased": {},
    "tiny_families/starcoder2-4h2-plain-f16": {},
    "tiny_families/starcoder2-5h1-window": {"sliding_window": None},
    "tiny_scaled/granite-3h1-tied-bf16": {},
    "tiny_scaled/granite-6h2-biased": {},
    "tiny_experts/mixtral-5x2": {},
    "tiny_experts/mixtral-3x1-bf16": {},
    "tiny_experts/qwen2-moe-6x2": {},
    "tiny_experts/qwen3-moe-7x3": {},
    "tiny_gpt_oss/gpt-oss-5x2-yarn": {"swiglu_limit": 7.0, "swiglu_alpha": 1.702},
    "tiny_gpt_oss/gpt-oss-8x3-bf16": {},
}  # fmt: skip


def with_changes(name: str) -> tuple[files.Config, files.Tensors]:
    """Config and tensors of a recorded checkpoint, its layers again and again if it is to have
    more; gains are no ones, so that each is seen to be read."""
    config = json.loads((DATA / name / "config.json").read_text())
    tensors = files.stored_tensors(DATA / name)
    recorded = config.get("num_hidden_layers", config.get("n_layer"))
    config |= SAME[name]
    config |= {"dtype": "float32"}
    layers = config.get("num_hidden_layers", recorded)
    for layer in range(recorded, layers):
        prefix = f"model.layers.{layer % recorded}."
        tensors |= {
            tensor.replace(prefix, f"model.layers.{layer}."): value * np.float32(1 + layer / 100)
            for tensor, value in list(tensors.items())
            if tensor.startswith(prefix)
        }
    config.pop("layer_types", None)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    return config, tensors


def write_both(name: str, folder: Path, kind: str = "F32") -> tuple[Path, Path]:
    """A recorded checkpoint as Hugging Face and as GGUF files hold it."""
    save = pytest.importorskip("safetensors.numpy").save_file
    config, tensors = with_changes(name)
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "hf/model.safetensors")
    return folder / "hf", files.write_gguf(folder / "m.gguf", config, tensors, kind)


def same_maths(config: ModelConfig) -> ModelConfig:
    return replace(config, name="", bos_id=None, eos_ids=(), dtype=None)


def tensors_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name: checkpoint.read(name) for name in checkpoint.names()}


@pytest.mark.parametrize("name", SAME)
def test_the_model_and_the_weights_of_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    folder, file = write_both(name, tmp_path)
    wanted, found = read_config(folder), config_from_gguf(file)
    assert same_maths(found) == same_maths(wanted)
    expected, read = (
        tensors_of(open_checkpoint(*pair)) for pair in ((folder, wanted), (file, found))
    )
    assert list(read) == list(expected)
    for tensor, values in expected.items():
        np.testing.assert_array_equal(read[tensor], values, tensor)
