"""A family of two kinds of layers, from its config and checkpoint to tokens: a llama whose first
layers have a wider feed-forward part, stored under the numbers of one sequence of layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from added_family import added_family

import meshc
from meshc.frontend.checkpoints import (
    model_parameters,
    open_checkpoint,
    parameter_count,
    read_config,
)
from meshc.support.diagnostics import MeshcError

MODEL = """use blocks
model staged(E=8, H=2, D=E/H, F=12, W=20, V=16, first=1, rest=2, eps=1e-5, activation="silu",
             theta=10000.0, dtype="f32") {
  weights dtype  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat first {
      param norm_a[E], wq_a[E, H, D], wk_a[E, H, D], wv_a[E, H, D], wo_a[H, D, E]
      param norm_b[E], gate_a[E, W], up_a[E, W], down_a[W, E]
      h = rms_norm(x, norm_a, eps)
      x = x + mha_attention(rope(h @ wq_a, theta), rope(h @ wk_a, theta), h @ wv_a) @ wo_a
      x = x + swiglu(rms_norm(x, norm_b, eps), gate_a, up_a, down_a)
    }
    repeat rest {
      param norm_c[E], wq_b[E, H, D], wk_b[E, H, D], wv_b[E, H, D], wo_b[H, D, E]
      param norm_d[E], gate_b[E, F], up_b[E, F], down_b[F, E]
      h = rms_norm(x, norm_c, eps)
      x = x + mha_attention(rope(h @ wq_b, theta), rope(h @ wk_b, theta), h @ wv_b) @ wo_b
      x = x + swiglu(rms_norm(x, norm_d, eps), gate_b, up_b, down_b)
    }
    return x when prefill
    return rms_norm(x, final_norm, eps) @ lm_head
  }
}
"""
TABLES = """rope_types = ["default"]
[architectures]
StagedForCausalLM = "staged"
[sizes]
hidden = { parameter = "E", key = "hidden_size" }
heads = { parameter = "H", key = "num_attention_heads" }
kv_heads = { key = "num_key_value_heads", default = "heads", equal = "heads", why = "one per head" }
head_dim = { parameter = "D", key = "head_dim", default = "hidden / heads" }
ffn = { parameter = "F", key = "intermediate_size" }
vocab = { parameter = "V", key = "vocab_size" }
layers = { key = "num_hidden_layers" }
max_positions = { key = "max_position_embeddings" }
[own]
W = { key = "first_intermediate_size", limit = "ffn" }
first = { key = "first_layers", limit = "layers" }
rest = { key = "num_hidden_layers", limit = "layers", less = "first", why = "layers follow them" }
"""
STORED = {
    "norm": ("input_layernorm", ["E"]),
    "wq": ("self_attn.q_proj", ["H D", "E"]),
    "wk": ("self_attn.k_proj", ["H D", "E"]),
    "wv": ("self_attn.v_proj", ["H D", "E"]),
    "wo": ("self_attn.o_proj", ["E", "H D"]),
    "second_norm": ("post_attention_layernorm", ["E"]),
    "gate": ("mlp.gate_proj", ["F", "E"]),
    "up": ("mlp.up_proj", ["F", "E"]),
    "down": ("mlp.down_proj", ["E", "F"]),
}
PARAMS = {
    "a": {"norm": "norm_a", "second_norm": "norm_b"},
    "b": {"norm": "norm_c", "second_norm": "norm_d"},
}
CONFIG: dict[str, Any] = {
    "architectures": ["StagedForCausalLM"],
    "model_type": "staged",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "first_intermediate_size": 20,
    "vocab_size": 16,
    "num_hidden_layers": 3,
    "first_layers": 1,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
PROMPT = [3, 7, 1, 12]


def tensors_text() -> str:
    """``tensors.toml``: the params of both loops have the stored names of one."""
    entries = {
        "embedding": ("model.embed_tokens.weight", ["V", "E"]),
        "final_norm": ("model.norm.weight", ["E"]),
        "lm_head": ("lm_head.weight", ["V", "E"]),
    }
    for kind, renamed in PARAMS.items():
        for name, (stored, axes) in STORED.items():
            own = [axis.replace("F", "W") for axis in axes] if kind == "a" else axes
            param = renamed.get(name, f"{name}_{kind}")
            entries[param] = (f"model.layers.{{n}}.{stored}.weight", own)
    return "\n".join(
        f"[{param}]\nhf = '{name}'\ngguf = '{name}'\nstored = {axes}\n"
        for param, (name, axes) in entries.items()
    )


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path) -> Iterator[None]:
    texts = {"model.mesh": MODEL, "config.toml": TABLES, "tensors.toml": tensors_text()}
    with added_family("staged", texts, tmp_path):
        yield


def checkpoint(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    """A checkpoint of three layers in ``folder``, and its tensors."""
    save = pytest.importorskip("safetensors.numpy").save_file
    extents = {"E": 8, "V": 16, "H D": 8}
    shapes = {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,)}
    shapes["lm_head.weight"] = (16, 8)
    for layer in range(3):
        own = {**extents, "F": 20 if layer == 0 else 12}
        for stored, axes in STORED.values():
            shapes[f"model.layers.{layer}.{stored}.weight"] = tuple(own[a] for a in axes)
    rng = np.random.default_rng(2)
    tensors = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True)
    save(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return tensors


def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def rotated(x: np.ndarray) -> np.ndarray:
    turn = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(2) / 2)
    pair = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * turn)
    return np.concatenate([pair.real, pair.imag], -1)


def logits(ids: list[int], stored: dict[str, np.ndarray]) -> np.ndarray:
    """Of every token: three layers of one sequence, whatever kind they are."""
    w = {name: tensor.astype(np.float64) for name, tensor in stored.items()}
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(3):
        own = {n: w[f"model.layers.{layer}.{stored}.weight"] for n, (stored, _) in STORED.items()}
        h = norm(x, own["norm"])
        q, k, v = ((h @ own[f"w{n}"].T).reshape(len(ids), 2, 4) for n in "qkv")
        scores = np.einsum("lhd,mhd->hlm", rotated(q), rotated(k)) / 2
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hlm,mhd->lhd", shares, v).reshape(len(ids), 8) @ own["wo"].T
        h = norm(x, own["second_norm"])
        gate = h @ own["gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ own["up"].T)) @ own["down"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


@pytest.mark.models
def test_layers_of_one_sequence_are_read_to_two_loops(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path / "model")
    config = read_config(tmp_path / "model")
    parameters = model_parameters(config)
    assert (config.layers, parameters["first"], parameters["rest"]) == (3, 1, 2)
    assert parameter_count(config) == sum(tensor.size for tensor in stored.values())
    opened = open_checkpoint(tmp_path / "model", config)
    assert opened.shape("gate_a") == (1, 8, 20)
    assert opened.shape("gate_b") == (2, 8, 12)
    gate = stored["model.layers.2.mlp.gate_proj.weight"]
    np.testing.assert_array_equal(opened.read_layer("gate_b", 1), gate.T)
    with pytest.raises(IndexError):
        opened.read_layer("gate_a", 1)


@pytest.mark.models
@pytest.mark.parametrize("mesh", ["1x1", "2x3"])
def test_its_programs_agree_with_float64(mesh: str, tmp_path: Path) -> None:
    stored = checkpoint(tmp_path / "model")
    config = read_config(tmp_path / "model")
    opened = open_checkpoint(tmp_path / "model", config)
    weights = {name: opened.read(name) for name in opened.names()}
    compiled = meshc.compile(tmp_path / "model", mesh=mesh, seq=12, dtype="f32")
    answer = compiled.load(weights).generate(PROMPT, 5, ignore_eos=True)
    wanted = logits([*PROMPT, *answer.tokens[:-1]], stored)[len(PROMPT) - 1 :]
    np.testing.assert_allclose(answer.logits, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.models
def test_a_second_loop_without_layers_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", first_layers=3)
    with pytest.raises(MeshcError, match="a number above 3 is wanted: layers follow them"):
        read_config(tmp_path / "model")


@pytest.mark.models
def test_tensors_of_the_other_kind_do_not_fit(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", first_layers=2)
    config = read_config(tmp_path / "model")
    with pytest.raises(MeshcError, match="needs \\[20, 8\\]"):
        open_checkpoint(tmp_path / "model", config)
