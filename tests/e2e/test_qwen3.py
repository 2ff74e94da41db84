"""qwen3 from a checkpoint of Hugging Face's form: prompts and decode steps by the interpreters and
by emitted programs, against NumPy in float64 on the stored matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_programs import mesh_program
from reduced import each

import meshc
from meshc.backends.cuda.executor import CXX
from meshc.cli import main
from meshc.frontend.checkpoints import model_of, open_checkpoint, read_config
from meshc.frontend.language import elaborate
from meshc.interp.check import Session

PROMPT, COUNT = [3, 17, 8, 5, 9, 30, 2], 5
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "attention_bias": False,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": ["full_attention"] * 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
TENSORS = {
    "input_layernorm": "E",
    "self_attn.q_proj": "HD E",
    "self_attn.k_proj": "GD E",
    "self_attn.v_proj": "GD E",
    "self_attn.o_proj": "E HD",
    "self_attn.q_norm": "D",
    "self_attn.k_norm": "D",
    "post_attention_layernorm": "E",
    "mlp.gate_proj": "F E",
    "mlp.up_proj": "F E",
    "mlp.down_proj": "E F",
}
LAYER = "model.layers.{}.{}.weight"


def extents(config: dict[str, Any]) -> dict[str, int]:
    """Of the axes of stored tensors."""
    lanes = config["head_dim"]
    return {
        "E": config["hidden_size"],
        "HD": config["num_attention_heads"] * lanes,
        "GD": config["num_key_value_heads"] * lanes,
        "D": lanes,
        "F": config["intermediate_size"],
        "V": config["vocab_size"],
    }


def checkpoint(folder: Path, spread: float = 0.5, **changes: Any) -> dict[str, np.ndarray]:
    """A checkpoint in ``folder``; its tensors as float64."""
    save = pytest.importorskip("safetensors.numpy").save_file
    config = {**CONFIG, **changes}
    rng = np.random.default_rng(11)
    sizes = extents(config)
    shapes = {LAYER.format(n, name): dims for n in range(2) for name, dims in TENSORS.items()}
    shapes |= {"model.embed_tokens.weight": "V E", "model.norm.weight": "E"}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = "V E"
    tensors = {
        name: rng.normal(0, spread, [sizes[d] for d in dims.split()]).astype(np.float32)
        for name, dims in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps(config))
    save(tensors, folder / "model.safetensors")
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + CONFIG["rms_norm_eps"]) * gain


def rotated(x: np.ndarray) -> np.ndarray:
    """Lanes i and i + D/2 of each head, [tokens, heads, D]."""
    half = x.shape[-1] // 2
    turn = np.arange(len(x))[:, None, None] * CONFIG["rope_theta"] ** (-np.arange(half) / half)
    pair = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * turn)
    return np.concatenate([pair.real, pair.imag], -1)


def logits(ids: list[int], stored: dict[str, np.ndarray]) -> np.ndarray:
    """Of every token of ``ids``, all tokens at once."""
    x = stored["model.embed_tokens.weight"][ids]
    lanes = len(stored[LAYER.format(0, "self_attn.q_norm")])
    for layer in range(2):
        w = {name: stored[LAYER.format(layer, name)] for name in TENSORS}
        h = norm(x, w["input_layernorm"])
        q, k, v = ((h @ w[f"self_attn.{n}_proj"].T).reshape(len(ids), -1, lanes) for n in "qkv")
        q = rotated(norm(q, w["self_attn.q_norm"]))
        k = rotated(norm(k, w["self_attn.k_norm"]))
        attended = []
        group = q.shape[1] // k.shape[1]
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(lanes)
            scores[~np.tri(len(ids), dtype=bool)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            attended.append(shares / shares.sum(-1, keepdims=True) @ v[:, head // group])
        x = x + np.concatenate(attended, -1) @ w["self_attn.o_proj"].T
        h = norm(x, w["post_attention_layernorm"])
        gate = h @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    head = stored.get("lm_head.weight", stored["model.embed_tokens.weight"])
    return norm(x, stored["model.norm.weight"]) @ head.T


def greedy(stored: dict[str, np.ndarray]) -> list[int]:
    ids = list(PROMPT)
    for _ in range(COUNT):
        ids.append(int(logits(ids, stored)[-1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.models
@pytest.mark.parametrize("tied", [False, True])
def test_the_graph_gives_the_logits_of_every_token(tied: bool, tmp_path: Path) -> None:
    stored = checkpoint(tmp_path, tie_word_embeddings=tied)
    config = read_config(tmp_path)
    weights = open_checkpoint(tmp_path, config)
    module = elaborate(model_of(config), "decode", seq=len(PROMPT))
    session = Session(module, {name: weights.read(name) for name in weights.names()})
    wanted = logits(PROMPT, stored)
    for step, token in enumerate(PROMPT):
        (got,) = session.step({"tokens": np.array([[token]])}, {"pos": step})
        np.testing.assert_allclose(got[0, 0], wanted[step], rtol=1e-9, atol=1e-9)


@pytest.mark.models
@pytest.mark.parametrize("mesh", each(["3x4", "1x1", "2x6", "2x2"], 4))
def test_tokens_and_logits_of_distributed_programs(mesh: str, tmp_path: Path) -> None:
    stored = checkpoint(tmp_path)
    tokens = greedy(stored)
    program = mesh_program(str(tmp_path), mesh, len(PROMPT) + COUNT)
    found, values = program.run(tmp_path, PROMPT, COUNT)
    assert found == tokens
    wanted = logits([*PROMPT, *tokens[:-1]], stored)[len(PROMPT) - 1 :]
    got = np.array(values).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * np.abs(wanted).max())
    assert program.interpret(PROMPT, 2) == tokens[:2]


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.skipif(CXX.path() is None, reason="no C++ compiler")
def test_logits_of_kernels_for_clusters(tmp_path: Path) -> None:
    """In the executor, in f16: within a few roundings of f16 of the largest logit, for the tokens
    that were generated."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 64}
    sizes |= {"intermediate_size": 192, "vocab_size": 96}
    stored = checkpoint(tmp_path, 0.1, **sizes)
    compiled = meshc.compile(tmp_path, target="cuda", dtype="f16", seq=16)
    with compiled.load(backend="cuda-cpu") as program:
        answer = program.generate(PROMPT, 3, ignore_eos=True)
    wanted = logits([*PROMPT, *answer.tokens[:-1]], stored)[len(PROMPT) - 1 :]
    off = np.abs(answer.logits - wanted).max()
    assert off <= 2**-7 * np.abs(wanted).max()


@pytest.mark.models
def test_heads_that_no_kernel_by_pattern_takes_are_made_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path)
    asked = ["--target", "cuda", "--dtype", "f16", "--seq", "16", "--remarks", "-o"]
    assert main(["compile", str(tmp_path), *asked, str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "remark[step-of-tasks]" in said and "remark[prompt-of-tasks]" in said
