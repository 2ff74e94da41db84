"""Hugging Face configs of the llama and qwen2 families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import LLAMA_CONFIG, TINY, TINY_NAMES, config_file, diagnosed, model_config

from meshc.frontend.checkpoints import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    read_config,
)
from meshc.frontend.checkpoints.hf import config
from meshc.support.declared_values import toml_of
from meshc.support.diagnostics import Diagnostics

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
SLIDES, FULL = "sliding_attention", "full_attention"
ALL_OVER = [SLIDES, SLIDES, FULL, SLIDES, SLIDES]
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _read(folder: Path, **changes: Any) -> ModelConfig:
    return read_config(config_file(folder, changes))


def test_plain_llama(tmp_path: Path) -> None:
    assert _read(tmp_path) == model_config()
    assert read_config(tmp_path / "small") == model_config()


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    config = _read(tmp_path, num_key_value_heads=..., torch_dtype=..., architectures=...)
    assert config == model_config(kv_heads=4, dtype=None)


def test_qwen2_has_biases_for_q_k_and_v_only(tmp_path: Path) -> None:
    config = _read(tmp_path, **QWEN2)
    assert (config.attention_bias, config.o_bias, config.mlp_bias) == (True, False, False)


def test_qwen3_has_heads_of_a_width_of_their_own(tmp_path: Path) -> None:
    config = _read(tmp_path, **QWEN3, head_dim=16)
    assert config == model_config(family="qwen3", head_dim=16)
    absent = _read(tmp_path, **QWEN3, num_attention_heads=64, num_key_value_heads=...)
    assert (absent.head_dim, absent.kv_heads) == (128, 32)
    assert _read(tmp_path, **QWEN3, num_key_value_heads=None).kv_heads == 4


def test_qwen3_with_biases_is_refused(tmp_path: Path) -> None:
    (found,) = diagnosed(
        "config-unsupported", lambda: _read(tmp_path, **QWEN3, attention_bias=True)
    )
    assert "biases of q, k, v and the output" in found.message
    diagnosed("config-unsupported", lambda: _read(tmp_path, **QWEN3, mlp_bias=True))


def test_llama_attention_bias_includes_the_output(tmp_path: Path) -> None:
    config = _read(tmp_path, attention_bias=True, mlp_bias=True)
    assert (config.attention_bias, config.o_bias, config.mlp_bias) == (True, True, True)


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 500000}, 500000.0, None),
        ({"rope_scaling": None}, 10000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, LinearScaling(2.0)),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, 10000.0, LinearScaling(2.5)),
        ({"rope_scaling": LLAMA3}, 10000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5}}, 5e5, None),
        (
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
            5e5,
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
        ),
        (
            {
                "rope_theta": 7.0,
                "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2},
                "rope_parameters": {"rope_theta": 7.0, "rope_type": "linear", "factor": 2},
            },
            7.0,
            LinearScaling(2.0),
        ),
    ],
)
def test_both_spellings_of_rope(
    tmp_path: Path, changes: dict[str, Any], theta: float, scaling: object
) -> None:
    config = _read(tmp_path, **changes)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("silu", "silu"), ("swish", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh")],
)
def test_activations(tmp_path: Path, word: str, kind: str) -> None:
    assert _read(tmp_path, hidden_act=word).activation == kind


def test_dtype_in_both_spellings(tmp_path: Path) -> None:
    assert _read(tmp_path, torch_dtype=..., dtype="bfloat16").dtype == "bf16"
    assert _read(tmp_path, torch_dtype="float16", dtype="float16").dtype == "f16"
    diagnosed("config-bad-value", lambda: _read(tmp_path, dtype="bfloat16"))


def test_several_end_tokens(tmp_path: Path) -> None:
    config = _read(tmp_path, bos_token_id=1, eos_token_id=[2, 7])
    assert (config.bos_id, config.eos_ids) == (1, (2, 7))


def test_the_name_is_safe_in_any_text(tmp_path: Path) -> None:
    folder = tmp_path / "my model; $(rm) é"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert read_config(folder).name == "my-model-rm"


@pytest.mark.every_case
@pytest.mark.parametrize("name", TINY_NAMES)
def test_configs_as_transformers_writes_them_give_no_remark(name: str) -> None:
    diagnostics = Diagnostics()
    config = read_config(TINY / name, diagnostics)
    assert config.name == name
    assert not diagnostics.messages


def test_mistral_without_a_window_is_llama(tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    assert read_config(config_file(tmp_path, MISTRAL), diagnostics) == model_config()
    assert not diagnostics.messages
    by_type = {**MISTRAL, "architectures": ..., "head_dim": 16, "tie_word_embeddings": True}
    assert _read(tmp_path, **by_type) == model_config(head_dim=16, tied_embeddings=True)


def test_defaults_of_mistral_are_those_of_transformers(tmp_path: Path) -> None:
    absent = _read(tmp_path, **MISTRAL, num_attention_heads=16, num_key_value_heads=...)
    assert (absent.kv_heads, absent.head_dim) == (8, 2)
    assert _read(tmp_path, **MISTRAL, num_key_value_heads=None).kv_heads == 4


@pytest.mark.parametrize(("given", "window"), [(..., 4096), (7, 7)])
def test_windows_of_mistral(tmp_path: Path, given: object, window: int) -> None:
    kinds = ["sliding_attention"] * model_config().layers
    for layer_types in (..., kinds):
        changes = {"sliding_window": given, "layer_types": layer_types}
        assert _read(tmp_path, **{**MISTRAL, **changes}) == model_config(own={"W": window})


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"sliding_window": 0}, "config-bad-value", "an integer from 1"),
        ({"sliding_window": 8, "layer_types": []}, "config-unsupported", "windows in other layers"),
        (
            {"layer_types": ["sliding_attention"] * 2},
            "config-unsupported",
            "only layers of type full_attention",
        ),
        ({"attention_bias": True}, "config-bad-value", "mistral has no biases"),
        ({"mlp_bias": True}, "config-bad-value", "mistral has no biases"),
    ],
)
def test_other_mistrals_are_refused(
    tmp_path: Path, changes: dict[str, Any], code: str, words: str
) -> None:
    (found,) = diagnosed(code, lambda: _read(tmp_path, **{**MISTRAL, **changes}))
    assert words in found.message


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("BloomForCausalLM", "read: llama; it differs: ALiBi in the place of RoPE"),
        ("GPTBigCodeForCausalLM", "read: llama; it differs: learned positions, layer norms"),
        ("OPTForCausalLM", "read: llama; it differs: learned positions"),
        ("LlamaForSequenceClassification", "llama is read as a model of the next token"),
        ("Qwen2FancyForCausalLM", 'by its name: qwen2; its config has "num_experts", "qk_norm"'),
        ("Zzz", 'by its name: llama; its config has "num_experts", "qk_norm"'),
    ],
)
def test_refusals_name_the_nearest_architecture(
    tmp_path: Path, architecture: str, words: str
) -> None:
    changes = {"num_experts": 8, "qk_norm": True, "sliding_window": 64, "pretraining_tp": 1}
    file = config_file(tmp_path, {**changes, "architectures": [architecture], "model_type": ...})
    (found,) = diagnosed("unsupported-architecture", lambda: read_config(file))
    assert words in "".join(found.notes)


def test_nothing_says_how_an_unknown_one_differs(tmp_path: Path) -> None:
    wrong = {"architectures": ..., "model_type": "lama"}
    (found,) = diagnosed("unsupported-architecture", lambda: _read(tmp_path, **wrong))
    assert "by its name: llama; nothing here says how it differs" in found.notes[0]


def test_the_nearest_architectures_are_read() -> None:
    known = toml_of("meshc.frontend.checkpoints.hf", "near.toml")
    assert {entry["nearest"] for entry in known.values()} <= set(config._families())
    assert not known.keys() & config._families().keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequence"),
        ({"architectures": []}, "[]"),
        ({"architectures": [{"a": 1}]}, "object"),
        ({"architectures": 3, "model_type": ...}, "3"),
        ({"model_type": "mistral"}, "mistral"),
        ({"model_type": "qwen2"}, "qwen2"),
        ({"model_type": ["llama"]}, "list"),
        ({"architectures": ..., "model_type": ...}, "no architecture"),
    ],
)
def test_unknown_architectures_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (found,) = diagnosed("unsupported-architecture", lambda: _read(tmp_path, **changes))
    assert words in found.message
    assert "LlamaForCausalLM" in str(found.help) and "Qwen2ForCausalLM" in str(found.help)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "extrapolation_factor": 1.0}},
        {"rope_scaling": {"type": "proportional", "factor": 4.0}},
        {"rope_scaling": {"rope_type": {"a": 1}}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32}},
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.25},
        {"sliding_window": 4096},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": "full_attention"},
        {**QWEN2, "layer_types": ["full_attention", "sliding_attention"]},
        {
            **QWEN2,
            "use_sliding_window": True,
            "num_hidden_layers": 7,
            "layer_types": [*ALL_OVER, SLIDES, FULL],
        },
        {**MIXTRAL, "layer_types": [SLIDES] * 2},
        {"quantization_config": {"quant_method": "awq"}},
        {"attn_logit_softcapping": 50.0},
        {"final_logit_softcapping": 30.0},
        {"embedding_multiplier": 12.0},
        {"logits_scaling": 8},
        {"num_local_experts": 8},
        {"use_qk_norm": True},
        {"qkv_bias": True},
        {"is_causal": False},
        {"vision_config": {"hidden_size": 3}},
        {"hidden_activation": "gelu"},
        {"something_multiplier": 2},
    ],
)
def test_maths_that_is_not_understood(tmp_path: Path, changes: dict[str, Any]) -> None:
    for found in diagnosed("config-unsupported", lambda: _read(tmp_path, **changes)):
        assert found.span is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"partial_rotary_factor": 1.0},
        {"sliding_window": None},
        {**QWEN2, "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1},
        {**QWEN2, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        {"layer_types": ["full_attention"] * 2},
        {"quantization_config": None},
        {"attn_logit_softcapping": None},
        {"embedding_multiplier": 1.0},
        {"num_local_experts": 0},
        {"is_causal": True},
        {"pretraining_tp": 1},
    ],
)
def test_maths_that_is_switched_off(tmp_path: Path, changes: dict[str, Any]) -> None:
    diagnostics = Diagnostics()
    read_config(config_file(tmp_path, changes), diagnostics)
    assert not diagnostics.messages


def test_unused_keys_are_remarked_on_with_their_place(tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    read_config(config_file(tmp_path, {"pretraining_tp": 2, "my_run": "a"}), diagnostics)
    assert [(m.severity, m.code) for m in diagnostics.messages] == [
        ("remark", "config-unused-key")
    ] * 2
    assert all(message.span for message in diagnostics.messages)


REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", [..., None])
def test_missing_keys(tmp_path: Path, key: str, value: object) -> None:
    (found,) = diagnosed("config-missing-key", lambda: _read(tmp_path, **{key: value}))
    assert f"'{key}'" in found.message


@pytest.mark.parametrize("key", REQUIRED[:-1])
@pytest.mark.parametrize(
    "value", [0, -1, "32", 32.0, True, [32], {"a": 1}, 10**30, 1 << 40, 10**4000]
)
def test_sizes_out_of_range(tmp_path: Path, key: str, value: object) -> None:
    (found,) = diagnosed("config-bad-value", lambda: _read(tmp_path, **{key: value}))
    assert f"'{key}'" in found.message
    assert found.span is not None and found.span.source.name.endswith("config.json")
    assert found.span.source.line(found.span.line)[found.span.column - 1 :].startswith(f'"{key}"')


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 0},
        {"rms_norm_eps": -1e-5},
        {"rms_norm_eps": "1e-5"},
        {"rms_norm_eps": 10**400},
        {"rope_theta": 0},
        {"rope_theta": -3.0},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}},
        {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}},
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1e4}},
        {"hidden_act": "quick_gelu"},
        {"hidden_act": ["silu"]},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"hidden_size": 36, "num_attention_heads": 4},
        {"hidden_size": 33},
        {"tie_word_embeddings": "yes"},
        {"attention_bias": 1},
        {**QWEN2, "attention_bias": False},
        {**QWEN2, "mlp_bias": True},
        {"bos_token_id": 96},
        {"eos_token_id": [1, "2"]},
        {"eos_token_id": -1},
        {"eos_token_id": list(range(90))},
        {"torch_dtype": "float8_e4m3fn"},
    ],
)
def test_bad_values(tmp_path: Path, changes: dict[str, Any]) -> None:
    for found in diagnosed("config-bad-value", lambda: _read(tmp_path, **changes)):
        assert found.span is not None


def test_a_scaling_without_its_factor(tmp_path: Path) -> None:
    diagnosed("config-missing-key", lambda: _read(tmp_path, rope_scaling={"type": "linear"}))
    diagnosed("config-missing-key", lambda: _read(tmp_path, rope_scaling={"factor": 2.0}))


def test_all_faults_of_a_file_at_once(tmp_path: Path) -> None:
    changes = {"hidden_size": -1, "vocab_size": ..., "hidden_act": "tanh", "sliding_window": 5}
    found = diagnosed("config-bad-value", lambda: _read(tmp_path, **changes))
    assert sorted(d.code for d in found) == [
        "config-bad-value",
        "config-bad-value",
        "config-missing-key",
        "config-unsupported",
    ]


def test_a_hundred_thousand_bad_keys_give_a_bounded_report(tmp_path: Path) -> None:
    changes = {f"expert{i}": 1 for i in range(30_000)} | {f"k{i}": 1 for i in range(30_000)}
    assert len(diagnosed("config-unsupported", lambda: _read(tmp_path, **changes))) <= 40


def test_control_characters_in_a_key_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (found,) = diagnosed(
        "config-unsupported", lambda: _read(tmp_path, **{"expert\x1b[31m\ud800": 1})
    )
    assert "\x1b" not in found.render()
    found.render().encode("utf-8")


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    diagnosed("checkpoint-unreadable", lambda: read_config(tmp_path))
