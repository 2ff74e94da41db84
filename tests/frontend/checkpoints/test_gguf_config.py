"""Models described by GGUF metadata."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import (
    diagnosed,
    gguf_bytes,
    gguf_model_bytes,
    gguf_pairs,
    hf_tensors,
    model_config,
)

from meshc.frontend.checkpoints import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    YarnScaling,
    config_from_gguf,
)
from meshc.frontend.checkpoints.gguf.rope import llama3_factors, llama3_from_factors


def _read(folder: Path, raw: bytes) -> ModelConfig:
    file = folder / "small.gguf"
    file.write_bytes(raw)
    return config_from_gguf(file)


def _with(folder: Path, config: ModelConfig | None = None, **changes: Any) -> ModelConfig:
    pairs = gguf_pairs(config or model_config(), **{"vocab_size": ("u32", 96), **changes})
    return _read(folder, gguf_bytes(pairs))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True, "kv_heads": 4},
        {"family": "qwen2", "attention_bias": True, "rope_theta": 1e6, "eps": 1e-6},
        {"family": "qwen3", "head_dim": 12},
    ],
)
def test_the_model_that_was_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = model_config(**changes)
    assert _read(tmp_path, gguf_model_bytes(config, hf_tensors(config))) == config


def test_absent_keys_have_the_defaults_of_the_format(tmp_path: Path) -> None:
    absent = dict.fromkeys(
        ("attention.head_count_kv", "rope.freq_base", "rope.dimension_count"), None
    )
    more = dict.fromkeys(("attention.key_length", "attention.value_length"), None)
    config = _with(tmp_path, **absent, **more)
    assert (config.kv_heads, config.rope_theta, config.head_dim) == (4, 10000.0, 8)


def test_linear_scaling(tmp_path: Path) -> None:
    new = {"rope.scaling.type": ("str", "linear"), "rope.scaling.factor": ("f32", 4.0)}
    assert _with(tmp_path, **new).rope_scaling == LinearScaling(4.0)
    old = {"rope.scale_linear": ("f32", 2.0)}
    assert _with(tmp_path, **old).rope_scaling == LinearScaling(2.0)
    assert _with(tmp_path, **{"rope.scaling.type": ("str", "none")}).rope_scaling is None
    untyped = {"rope.scaling.factor": ("f32", 4.0)}
    assert _with(tmp_path, **untyped).rope_scaling == LinearScaling(4.0)
    yarn = {
        **untyped,
        "rope.scaling.type": ("str", "yarn"),
        "rope.scaling.original_context_length": ("u32", 32),
    }
    scale = (0.1 * math.log(4.0) + 1) ** 2
    assert _with(tmp_path, **yarn).rope_scaling == YarnScaling(4.0, 32.0, 1.0, 32, scale)
    unscaled = {**untyped, "rope.scaling.type": ("str", "none")}
    assert _with(tmp_path, **unscaled).rope_scaling is None


def _with_factors(folder: Path, factors: np.ndarray, type_id: int = 0) -> ModelConfig:
    config = model_config(head_dim=64, rope_theta=500000.0)
    tensor = ("rope_freqs.weight", factors.shape, type_id, factors.astype("<f4").tobytes())
    pairs = gguf_pairs(config, vocab_size=("u32", 96))
    return _read(folder, gguf_bytes(pairs, [tensor]))


def test_factors_of_llama3_scaling_are_recognised(tmp_path: Path) -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    factors = llama3_factors(scaling, 500000.0, 64)
    assert _with_factors(tmp_path, factors).rope_scaling == scaling


def test_factors_of_a_known_case_by_hand() -> None:
    # theta 4, four dimensions: frequencies 1 and 1/2, wavelengths 2 pi and 4 pi.
    factors = llama3_factors(Llama3Scaling(8.0, 1.0, 4.0, 10), 4.0, 4)
    part = (10 / (4 * np.pi) - 1) / 3 if 10 / (4 * np.pi) > 1 else 0.0
    part0 = (10 / (2 * np.pi) - 1) / 3
    expected = [1 / ((1 - p) / 8 + p) for p in (part0, part)]
    assert factors.tolist() == pytest.approx(expected)
    assert llama3_from_factors(np.ones(32, dtype=np.float32), 10000.0, 64) is None


@pytest.mark.parametrize(
    ("factors", "type_id"),
    [
        (np.linspace(1, 8, 32), 0),
        (np.full(32, np.nan), 0),
        (np.full(32, np.inf), 0),
        (np.ones(31), 0),
        (np.ones(32), 3),
    ],
)
def test_other_factors_are_refused(tmp_path: Path, factors: np.ndarray, type_id: int) -> None:
    (found,) = diagnosed("config-unsupported", lambda: _with_factors(tmp_path, factors, type_id))
    assert "rope_freqs" in found.message


@pytest.mark.parametrize(
    "change",
    [
        ("attention.sliding_window", ("u32", 4096)),
        ("expert_shared_count", ("u32", 8)),
        ("rope.scaling.attn_factor", ("f32", 1.5)),
        ("logit_scale", ("f32", 0.5)),
        ("attention.scale", ("f32", 0.5)),
        ("attention.causal", ("bool", False)),
        ("something_new", ("str", "x")),
        ("rope.dimension_sections", ("[i32]", [1, 2])),
    ],
)
def test_maths_that_is_not_understood(tmp_path: Path, change: tuple[str, Any]) -> None:
    (found,) = diagnosed("config-unsupported", lambda: _with(tmp_path, **dict([change])))
    assert change[0] in found.message
    assert "small.gguf" in found.notes[0]


def test_maths_that_is_switched_off(tmp_path: Path) -> None:
    off = {"expert_count": ("u32", 0), "attention.causal": ("bool", True)}
    assert _with(tmp_path, **off) == _with(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ("block_count", ("u32", 0)),
        ("block_count", ("str", "2")),
        ("embedding_length", ("u64", 1 << 60)),
        ("feed_forward_length", ("[i32]", [64, 64])),
        ("attention.head_count", ("f32", 4.0)),
        ("attention.head_count_kv", ("u32", 3)),
        ("attention.value_length", ("u32", 4)),
        ("rope.dimension_count", ("u32", 4)),
        ("rope.freq_base", ("f32", float("nan"))),
        ("rope.freq_base", ("f32", float("inf"))),
        ("rope.scaling.type", ("str", "longrope")),
        ("tensor_data_layout", ("str", "other")),
        ("attention.layer_norm_rms_epsilon", ("f32", 0.0)),
    ],
)
def test_bad_values(tmp_path: Path, change: tuple[str, Any]) -> None:
    found = diagnosed("config-bad-value", lambda: _with(tmp_path, **dict([change])))
    assert any(change[0] in d.message or "multiple" in d.message for d in found)


def test_all_missing_keys_at_once(tmp_path: Path) -> None:
    raw = gguf_bytes([("general.architecture", "str", "llama")])
    found = diagnosed("config-missing-key", lambda: _read(tmp_path, raw))
    assert len(found) == 7


@pytest.mark.parametrize(
    ("pairs", "note"),
    [
        ([], ""),
        (
            [("general.architecture", "str", "falcon")],
            "llama; it differs: layer norms, q, k and v are one",
        ),
        ([("general.architecture", "str", "deepsheep")], "by its name: "),
        ([("general.architecture", "str", "deepseek2")], "read from Hugging Face directories"),
        (
            [("general.architecture", "str", "gptneox")],
            "do not say whether GELU is exact",
        ),
    ],
)
def test_unknown_architectures(
    tmp_path: Path, pairs: list[tuple[str, str, Any]], note: str
) -> None:
    raw = gguf_bytes(pairs)
    (found,) = diagnosed("unsupported-architecture", lambda: _read(tmp_path, raw))
    assert note in "".join(found.notes)
