"""Configs and checkpoints of deepseek_v2: what is read and refused, logits of transformers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed

from meshc.driver.manifest import config_of
from meshc.frontend.checkpoints import (
    YarnScaling,
    model_of,
    open_checkpoint,
    parameter_count,
    read_config,
)
from meshc.frontend.language import elaborate
from meshc.interp.check import Session

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "intermediate_size": 48,
    "vocab_size": 37,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "first_k_dense_replace": 2,
    "n_routed_experts": 64,
    "moe_intermediate_size": 20,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

# That of DeepSeek-V2-Lite, but for a shorter context.
YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 256,
}


def config_file(folder: Path, **changes: Any) -> Path:
    """`CONFIG` with changes; ``...`` leaves a key out."""
    kept = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def test_lanes_are_read(tmp_path: Path) -> None:
    config = read_config(config_file(tmp_path))
    assert config.family == "deepseek_v2"
    assert config.own == {"R": 16, "N": 12, "P": 8, "D": 10, "Q": 0}
    assert config.head_dim == 20
    attention = 64 * 4 * 20 + 64 * 24 + 16 + 16 * 4 * 22 + 4 * 10 * 64
    assert parameter_count(config) == (2 * (attention + 3 * 64 * 48 + 2 * 64) + 2 * 37 * 64 + 64)


def test_absent_lanes_are_those_of_transformers(tmp_path: Path) -> None:
    absent = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    config = read_config(config_file(tmp_path, **dict.fromkeys(absent, ...)))
    assert config.own == {"R": 512, "N": 128, "P": 64, "D": 128, "Q": 0}


def test_lanes_that_do_not_turn_may_be_odd(tmp_path: Path) -> None:
    config = read_config(config_file(tmp_path, qk_nope_head_dim=5))
    assert config.own["N"] == 5 and config.head_dim == 13


def test_queries_of_a_low_rank_are_read(tmp_path: Path) -> None:
    full = read_config(config_file(tmp_path))
    config = read_config(config_file(tmp_path, q_lora_rank=24))
    assert config.own == {"R": 16, "N": 12, "P": 8, "D": 10, "Q": 24}
    queries = 64 * 24 + 24 + 24 * 4 * 20
    assert parameter_count(config) - parameter_count(full) == 2 * (queries - 64 * 4 * 20)
    absent = read_config(config_file(tmp_path, q_lora_rank=...))
    assert absent.own["Q"] == 1536


EXPERTS = {"num_hidden_layers": 5, "first_k_dense_replace": 2, "num_experts_per_tok": 6}


def test_experts_of_version_2_are_read(tmp_path: Path) -> None:
    config = read_config(config_file(tmp_path, **EXPERTS))
    assert config.layers == 5
    assert config.own == {
        "R": 16,
        "N": 12,
        "P": 8,
        "D": 10,
        "Q": 0,
        "sparse": 3,
        "X": 64,
        "K": 6,
        "FX": 20,
        "shared": 2,
        "groups": 1,
        "kept": 1,
        "routed": 1.0,
        "scoring": "softmax",
        "choice": "greedy",
    }
    module = elaborate(model_of(config), "decode", seq=4)
    assert module.dims["layers"] == 2 and module.dims["sparse"] == 3 and module.dims["F2"] == 40
    none = read_config(config_file(tmp_path, **EXPERTS, n_routed_experts=0))
    assert none.own == read_config(config_file(tmp_path)).own and none.layers == 5


def test_experts_of_version_3_are_read(tmp_path: Path) -> None:
    names = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    changes = {**names, **EXPERTS, "n_routed_experts": 32, "n_shared_experts": 1}
    config = read_config(config_file(tmp_path, **changes, routed_scaling_factor=1.5))
    assert config.family == "deepseek_v2"
    wanted = {"sparse": 3, "X": 32, "groups": 8, "kept": 4, "routed": 1.5, "normalise": True}
    assert wanted.items() <= config.own.items() and config.own["scoring"] == "sigmoid"
    absent = read_config(config_file(tmp_path, **{**changes, "first_k_dense_replace": ...}))
    assert absent.own["sparse"] == 2
    found = diagnosed(
        "config-unsupported",
        lambda: read_config(config_file(tmp_path, **changes, rope_interleave=False)),
    )
    assert "half a head apart" in found[0].message


def test_a_token_goes_to_at_most_all_experts(tmp_path: Path) -> None:
    file = config_file(tmp_path, **{**EXPERTS, "n_routed_experts": 4})
    (found,) = diagnosed("config-bad-value", lambda: read_config(file))
    assert "at most all experts, 4" in found.message


def test_yarn_is_read_with_the_defaults_of_transformers(tmp_path: Path) -> None:
    read = read_config(config_file(tmp_path, rope_scaling=YARN)).rope_scaling
    assert read == YarnScaling(40.0, 32.0, 1.0, 256, (0.1 * 0.707 * math.log(40) + 1) ** 2)
    absent = {k: v for k, v in YARN.items() if not k.startswith("beta")}
    assert read_config(config_file(tmp_path, rope_scaling=absent)).rope_scaling == read
    without = {k: v for k, v in YARN.items() if not k.startswith("mscale")} | {"factor": 1.0}
    plain = read_config(config_file(tmp_path, rope_scaling=without)).rope_scaling
    assert isinstance(plain, YarnScaling) and plain.attention_scale == 1.0


def test_a_manifest_keeps_the_config(tmp_path: Path) -> None:
    config = read_config(config_file(tmp_path, rope_scaling=YARN, q_lora_rank=24))
    assert config_of(json.loads(json.dumps({"config": asdict(config)}))) == config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"moe_layer_freq": 2}, "only some behind the dense ones have experts"),
        ({"norm_topk_prob": True}, "'norm_topk_prob'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 'RoPE type "linear"'),
        ({"rope_scaling": {**YARN, "mscale": 1.0}}, "'mscale' unlike 'mscale_all_dim'"),
        ({"rope_scaling": {**YARN, "mscale_all_dim": 0}}, "'mscale' unlike 'mscale_all_dim'"),
        ({"rope_scaling": {**YARN, "mscale": None}}, "'mscale' unlike 'mscale_all_dim'"),
        ({"rope_scaling": {**YARN, "attention_factor": 1.5}}, "'attention_factor'"),
        ({"attention_bias": True}, "'attention_bias'"),
        ({"mlp_bias": True}, "'mlp_bias'"),
        ({"tie_word_embeddings": True}, "'tie_word_embeddings'"),
        ({"sliding_window": 32}, "sliding-window"),
        ({"expert_bias": 1}, "'expert_bias' = 1"),
    ],
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = config_file(tmp_path, **changes)
    found = diagnosed("config-unsupported", lambda: read_config(file))
    assert words in "\n".join(d.message for d in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_lora_rank": 0}, "'kv_lora_rank' is 0"),
        ({"q_lora_rank": 0}, "'q_lora_rank' is 0"),
        ({"qk_rope_head_dim": 7}, "RoPE rotates pairs"),
        ({"num_key_value_heads": 2}, "latent attention has one per head, 4"),
        ({"n_routed_experts": "many"}, "'n_routed_experts'"),
        ({"rope_scaling": {**YARN, "factor": 0}}, "'factor' is 0"),
        ({"rope_scaling": {**YARN, "beta_slow": 32}}, "above beta_slow, 32"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 0}}, "is 0"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = config_file(tmp_path, **changes)
    found = diagnosed("config-bad-value", lambda: read_config(file))
    assert words in "\n".join(d.message for d in found)


def test_layers_without_experts_need_no_dense_ones(tmp_path: Path) -> None:
    for changes in ({"n_routed_experts": None}, {"n_routed_experts": 0}):
        assert read_config(config_file(tmp_path, first_k_dense_replace=0, **changes)).own


@pytest.mark.oracle
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"q_lora_rank": 24},
        {"qk_rope_head_dim": 16, "rope_scaling": YARN},
        {
            "qk_rope_head_dim": 16,
            "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "factor": 4.0},
        },
    ],
)
def test_a_checkpoint_of_transformers_gives_its_logits(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Written by transformers, read here, decoded token by token. Its norms and angles are f32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    given = {**CONFIG, **changes}
    del given["architectures"], given["model_type"]
    given["dtype"] = given.pop("torch_dtype")
    wanted_config = transformers.DeepseekV2Config(
        **given, attn_implementation="eager", bos_token_id=0, eos_token_id=1
    )
    torch.manual_seed(5)
    model = transformers.DeepseekV2ForCausalLM(wanted_config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * (1.0 if "norm" in name else 0.2))
        model.save_pretrained(tmp_path)
        tokens = torch.randint(0, 37, (1, 9))
        wanted = model.double()(tokens).logits[0].numpy()
    config = read_config(tmp_path)
    checkpoint = open_checkpoint(tmp_path, config)
    module = elaborate(model_of(config), "decode", seq=tokens.shape[1])
    session = Session(module, {name: checkpoint.read(name) for name in checkpoint.names()})
    for step in range(tokens.shape[1]):
        (got,) = session.step({"tokens": tokens[:, step : step + 1].numpy()}, {"pos": step})
        np.testing.assert_allclose(got[0, 0], wanted[step], rtol=1e-5, atol=1e-5)
