"""Checkpoints in both forms: recorded ones, changed so that a GGUF file can say what they are, and
random ones of given sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llama_cpp_files as files
import numpy as np
from safetensors.numpy import save_file

from meshc.frontend.checkpoints import read_config
from meshc.frontend.checkpoints.logical import logical_tensors

DATA = Path(__file__).parents[2] / "data"
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
    "tiny_families/smollm3-6h2": {"no_rope_layers": [1, 1, 1, 0]},
    "tiny_families/smollm3-5h1-biased-bf16": {},
    "tiny_families/cohere-4h2-normed-bf16": {},
    "tiny_families/cohere-6h2": {},
    "tiny_families/cohere-3h3-untied-bf16": {"tie_word_embeddings": True},
    "tiny_families/cohere2-6h2-window": {},
    "tiny_families/olmo-6h2": {},
    "tiny_families/olmo-4h4-clipped-bf16": {},
    "tiny_families/nemotron-6h2": {},
    "tiny_families/nemotron-4h1-biased-bf16": {},
    "tiny_families/glm4-6h2": {},
    "tiny_families/glm4-4h1-plain-bf16": {},
    "tiny_experts/granitemoe-6h2-5x2": {},
    "tiny_families/phi3-3h3-short-partial": {},
    "tiny_families/phi3-4h2-long-bf16": {},
    "tiny_families/phi3-4h2-parts": {},
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
"""Recorded checkpoints, and what of each config is otherwise so that a GGUF file can say it."""


def recorded(name: str) -> tuple[files.Config, files.Tensors]:
    """Config and tensors of the checkpoint ``name`` of `SAME`, its layers again and again, with
    other numbers, where it is to have more."""
    config = json.loads((DATA / name / "config.json").read_text())
    tensors = files.stored_tensors(DATA / name)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    config |= {**SAME[name], "dtype": "float32"}
    for layer in range(layers, config.get("num_hidden_layers", layers)):
        prefix = f"model.layers.{layer % layers}."
        tensors |= {
            tensor.replace(prefix, f"model.layers.{layer}."): value * np.float32(1 + layer / 100)
            for tensor, value in list(tensors.items())
            if tensor.startswith(prefix)
        }
    config.pop("layer_types", None)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    return config, tensors


def write_hugging_face(folder: Path, config: files.Config, tensors: files.Tensors) -> Path:
    """The checkpoint as transformers writes it, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return folder


def write_both(name: str, folder: Path) -> tuple[Path, Path]:
    """A recorded checkpoint as Hugging Face and as GGUF files hold it."""
    config, tensors = recorded(name)
    file = files.write_gguf(folder / "m.gguf", config, tensors)
    return write_hugging_face(folder / "hf", config, tensors), file


def drawn(config: files.Config, folder: Path, seed: int = 0) -> files.Tensors:
    """Random tensors of the shapes that ``config`` needs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    found: files.Tensors = {}
    for tensor in logical_tensors(read_config(folder)):
        for layer in range(max(tensor.layers, 1)):
            for name in tensor.stored_names(layer):
                shape = tensor.layout.stored_shape()
                width = np.sqrt(shape[-1]) if len(shape) > 1 else 4
                found[name] = random.standard_normal(shape, dtype=np.float32) / np.float32(width)
    if config.get("tie_word_embeddings"):
        found.pop("lm_head.weight", None)
    return found
