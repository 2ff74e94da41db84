"""Keys of a ``config.json`` that families spell alike: windows and their layers, how RoPE is
stretched, what absent keys stand for, names of activations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_files import config_file, diagnosed

from meshc.frontend.checkpoints import Llama3Scaling, ModelConfig, YarnScaling, read_config

DATA = Path(__file__).parents[2] / "data"
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
SLIDES, FULL = "sliding_attention", "full_attention"
ALL_OVER = [SLIDES, SLIDES, FULL, SLIDES, SLIDES]


def _read(folder: Path, **changes: Any) -> ModelConfig:
    return read_config(config_file(folder, changes))


@pytest.mark.parametrize("family", [QWEN2, QWEN3])
@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({"use_sliding_window": False, "max_window_layers": 0}, {}),
        ({"sliding_window": None, "max_window_layers": 0}, {}),
        ({}, {}),
        ({"max_window_layers": 0}, {"W": 4}),
        ({"max_window_layers": 3}, {"W": 4, "after": 3}),
        ({"max_window_layers": 5}, {}),
        ({"layer_types": [FULL] * 5, "max_window_layers": 0}, {}),
        ({"layer_types": [SLIDES] * 5}, {"W": 4}),
        ({"layer_types": [FULL, FULL, SLIDES, SLIDES, SLIDES]}, {"W": 4, "after": 2}),
        ({"layer_types": [SLIDES, FULL, SLIDES, FULL, SLIDES]}, {"W": 4, "every": 2}),
        ({"layer_types": [SLIDES, FULL, FULL, SLIDES, FULL]}, {"W": 4, "every": 3}),
        ({"layer_types": [SLIDES, FULL, FULL, FULL, FULL]}, {"W": 4, "every": 5}),
        ({"layer_types": ALL_OVER}, {"W": 4, "but": 3}),
    ],
)
def test_windows_in_layers_of_qwen(
    family: dict[str, Any], changes: dict[str, Any], own: dict[str, int], tmp_path: Path
) -> None:
    """By default from layer 28 on."""
    given = {"num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 4}
    assert _read(tmp_path, **family, **{**given, **changes}).own == own


@pytest.mark.parametrize(
    ("changes", "window"), [({"max_window_layers": 9}, 64), ({"sliding_window": ...}, 4096)]
)
def test_windows_of_models_with_experts(
    changes: dict[str, Any], window: int, tmp_path: Path
) -> None:
    """Those of mixtral and qwen3_moe are in all layers, those of qwen2_moe in every second one of
    those below a number."""
    given = {"use_sliding_window": True, "sliding_window": 64, **changes}
    qwen3 = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    qwen2 = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
    found = _read(tmp_path, **qwen3, **given, num_attention_heads=16, num_hidden_layers=4).own
    assert found["W"] == window and "every" not in found
    found = _read(tmp_path, **qwen2, **given, num_hidden_layers=4).own
    assert (found["W"], found["every"]) == (window, 2)
    found = _read(tmp_path, **qwen2, **{**given, "max_window_layers": 0}).own
    assert "W" not in found
    assert _read(tmp_path, **MIXTRAL, sliding_window=16).own["W"] == 16


@pytest.mark.parametrize(
    ("block", "scale"),
    [
        ({"factor": 4.0}, (0.1 * math.log(4.0) + 1) ** 2),
        ({"factor": None}, (0.1 * math.log(8.0) + 1) ** 2),
        ({"factor": 4.0, "finetuned": True, "attention_factor": 0.5}, 0.25),
        (
            {"factor": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5},
            ((0.2 * math.log(4.0) + 1) / (0.05 * math.log(4.0) + 1)) ** 2,
        ),
        ({"factor": 4.0, "mscale": 2.0}, (0.1 * math.log(4.0) + 1) ** 2),
    ],
)
@pytest.mark.parametrize("family", [{}, QWEN2, QWEN3, MISTRAL, MIXTRAL])
def test_yarn_of_whole_heads_goes_to_the_scores(
    family: dict[str, Any], block: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    rope = {"type": "yarn", "original_max_position_embeddings": 16, **block}
    found = _read(tmp_path, **family, rope_scaling=rope).rope_scaling
    assert isinstance(found, YarnScaling)
    assert found.original_max_position == 16
    assert found.attention_scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("beside", [{}, {"rope_theta": 500.0}])
def test_of_two_objects_transformers_reads_the_older(
    beside: dict[str, Any], tmp_path: Path
) -> None:
    """So they must say the same, the base included."""
    old, new = {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}
    both = {"rope_scaling": old, "rope_parameters": {**new, "rope_theta": 500.0}, **beside}
    if beside:
        assert _read(tmp_path, **both).rope_theta == 500.0
    else:
        (found,) = diagnosed("config-bad-value", lambda: _read(tmp_path, **both))
        assert "say different things" in found.message
    assert _read(tmp_path, rope_scaling=old, rope_parameters=new).rope_theta == 10000.0


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_the_original_context_is_the_context_where_nothing_is_said(
    kind: str, tmp_path: Path
) -> None:
    """One beside the object means nothing to transformers, so it must be the same."""
    rope = {"rope_type": kind, "factor": 4.0}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for changes in ({}, {"original_max_position_embeddings": 128}):
        found = _read(tmp_path, rope_scaling=rope, **changes).rope_scaling
        assert isinstance(found, YarnScaling | Llama3Scaling)
        assert found.original_max_position == 128
    changes = {"original_max_position_embeddings": 32}
    (fault,) = diagnosed("config-bad-value", lambda: _read(tmp_path, rope_scaling=rope, **changes))
    assert "in the object with the scaling of RoPE it is 128" in fault.message


@pytest.mark.parametrize(
    ("family", "eps", "context"),
    [({}, 1e-6, 2048), (QWEN2, 1e-6, 32768), (MISTRAL, 1e-6, 131072), (MIXTRAL, 1e-5, 131072)],
)
def test_what_absent_numbers_stand_for(
    family: dict[str, Any], eps: float, context: int, tmp_path: Path
) -> None:
    found = _read(tmp_path, **family, rms_norm_eps=..., max_position_embeddings=...)
    assert (found.eps, found.max_positions) == (eps, context)


def test_a_text_ends_with_the_token_of_the_family_where_none_is_named(tmp_path: Path) -> None:
    assert _read(tmp_path, eos_token_id=...).eos_ids == (2,)
    assert _read(tmp_path, **MIXTRAL, eos_token_id=...).eos_ids == (2,)
    assert _read(tmp_path, **QWEN2, eos_token_id=...).eos_ids == ()
    assert _read(tmp_path, eos_token_id=None).eos_ids == ()
    assert _read(tmp_path, eos_token_id=..., vocab_size=2).eos_ids == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gelu_fast", "gelu_tanh"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_python", "gelu"),
        ("relu", "relu"),
        ("relu2", "relu2"),
        ("swish", "silu"),
    ],
)
def test_names_of_activations(name: str, meant: str, tmp_path: Path) -> None:
    assert _read(tmp_path, hidden_act=name).activation == meant


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mixtral"])
def test_a_model_without_its_head_is_of_the_family(kind: str, tmp_path: Path) -> None:
    found = _read(tmp_path, architectures=[f"{kind}Model"], model_type=kind.lower())
    assert found.family == kind.lower()


def test_the_base_of_mixtral_is_another_one(tmp_path: Path) -> None:
    assert _read(tmp_path, **MIXTRAL).rope_theta == 1e6


@pytest.mark.parametrize(
    ("folder", "key", "other"),
    [
        ("tiny_families/gpt2-5h-tied", "n_embd", "hidden_size"),
        ("tiny_families/gpt2-5h-tied", "n_head", "num_attention_heads"),
        ("tiny_families/gpt2-5h-tied", "n_layer", "num_hidden_layers"),
        ("tiny_families/gpt2-5h-tied", "n_positions", "max_position_embeddings"),
        ("tiny_latent_experts/deepseek-v2-8x3", "n_routed_experts", "num_experts"),
        ("tiny_latent_experts/deepseek-v3-8x3", "n_routed_experts", "num_local_experts"),
    ],
)
def test_other_names_of_numbers(folder: str, key: str, other: str, tmp_path: Path) -> None:
    """In transformers a name of ``attribute_map`` stands for the other, and counts where a file
    has both."""
    given = json.loads((DATA / folder / "config.json").read_text())
    file = tmp_path / "config.json"
    for left in ({k: v for k, v in given.items() if k != key}, {**given, key: 1}):
        file.write_text(json.dumps({**left, other: given[key]}))
        assert replace(read_config(file), name="") == replace(
            read_config(DATA / folder / "config.json"), name="", eos_ids=read_config(file).eos_ids
        )


def test_a_gpt_neox_turns_the_share_that_rotary_pct_says(tmp_path: Path) -> None:
    """Some versions of transformers write the other key beside it, and read it for nothing."""
    known = DATA / "tiny_families" / "gpt_neox-5h-parallel" / "config.json"
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(known.read_text()), "partial_rotary_factor": 0.125}))
    assert replace(read_config(file), name="") == replace(read_config(known), name="")
