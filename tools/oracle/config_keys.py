"""What transformers makes of each key of a config.json: whether another value changes its logits.

Usage: python tools/oracle/config_keys.py [tests/data/config_keys.json]

For every type of model a small config is drawn, and each key that its config class has, by its own
name or another, or that another class or an older file has, takes other values in turn, over the
same weights. An answer is
``changes``, ``same`` or ``fails``: transformers refuses it, or it fits the weights no more.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "families"))

import torch
import transformers
from drawn_families import DRAWN, drawn
from tiny_models import _FAMILIES, TinyModel, _network

ROOT = Path(__file__).resolve().parents[2]
PROMPT = (3, 14, 15, 9, 26, 5, 31, 8, 2, 20, 11, 7)
KINDS = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "olmo2"),
    *("phi3", "gpt_neox", "gpt2", "stablelm", "starcoder2", "mixtral", "qwen2_moe", "qwen3_moe"),
    *("gpt_oss", "deepseek_v2", "deepseek_v3", "smollm3", "cohere", "cohere2", "nemotron", "glm4"),
    *("exaone4", "granitemoe", "olmo"),
)
FURTHER = (
    *("attention_bias", "mlp_bias", "qkv_bias", "head_dim", "sliding_window", "layer_types"),
    *("use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "rotary_pct", "rotary_emb_base", "logits_scaling", "logit_scale"),
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier", "hidden_activation"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"),
    *("use_qk_norm", "qk_layernorm", "use_parallel_residual", "parallel_attn", "is_causal"),
    *("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "num_experts_per_tok"),
    *("no_rope_layers", "pretraining_tp", "original_max_position_embeddings", "scale_depth"),
    *("is_decoder", "add_cross_attention", "tie_word_embeddings", "rms_norm_eps", "hidden_act"),
    *("use_cache", "initializer_range", "attention_dropout", "torch_dtype", "architectures"),
)
"""Keys of other classes, older files and their writers."""
SPECIAL: dict[str, list[Any]] = {
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 123.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
        {"type": "dynamic", "factor": 4.0},
        {"rope_type": "default", "factor": 8.0},
    ],
    "layer_types": [["full_attention"], ["sliding_attention"]],
    "mlp_only_layers": [[0]],
    "sliding_window": [2, None],
    "hidden_act": ["gelu", "relu", "gelu_fast", "tanh"],
    "hidden_activation": ["gelu", "silu"],
    "activation_function": ["relu", "gelu"],
    "no_rope_layers": [[0]],
    "torch_dtype": ["float16"],
    "architectures": [["OtherModel"]],
}
_LEFT_OUT = ("model_type", "transformers_version", "dtype", "vocab_size", "_name_or_path")


def values(key: str, given: object) -> list[Any]:
    """Other values of a key that has the value ``given``, None where it is not there."""
    if key in SPECIAL:
        return SPECIAL[key]
    if isinstance(given, bool):
        return [not given]
    if isinstance(given, int):
        return [given + 1, 2 * given + 1]
    if isinstance(given, float):
        return [given * 1.5 + 0.25]
    return [True, 1, 0.5, 3] if given is None else [[]] if isinstance(given, list) else ["other"]


def logits(config: dict[str, Any], weights: dict[str, torch.Tensor] | None) -> Any:
    """Of the prompt, and the weights of the model; new ones unless they are given."""
    kind = config["model_type"]
    own = transformers.CONFIG_MAPPING[kind].from_dict(copy.deepcopy(config))
    own._attn_implementation, own._experts_implementation = "eager", "eager"
    model = _FAMILIES[{"gemma3_text": "gemma3"}.get(kind, kind)][1](own).float().eval()
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPT])).logits[0], model.state_dict()


def record(kind: str) -> dict[str, Any]:
    """The config of a model of type ``kind``, and the answer to each key and value."""
    case = next(case for family, case in DRAWN if family == kind)
    draws = (drawn(kind, case, number, False) for number in range(9))
    settings = next(d for d in draws if int(str(d.get("num_hidden_layers", 2))) > 1)
    torch.manual_seed(1)
    made = _network(TinyModel("", {"gemma3_text": "gemma3"}.get(kind, kind), settings))
    config = json.loads(made.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config["architectures"] = [type(made).__name__]
    base, weights = logits(config, made.state_dict())
    answers: dict[str, Any] = {}
    others = made.config.attribute_map
    for key in sorted({*config, *FURTHER, *others} - {*_LEFT_OUT}):
        for value in values(key, config.get(others.get(key, key))):
            layers = config.get("num_hidden_layers") or config.get("n_layer")
            if key == "layer_types":
                value = value * int(layers)
            try:
                found, _ = logits({**config, key: value}, weights)
                off = float((found - base).abs().max() / base.abs().max())
                answer = "changes" if off > 1e-6 else "same"
            except Exception:
                answer = "fails"
            answers.setdefault(key, []).append([value, answer])
    return {"config": config, "answers": answers}


def main(arguments: list[str]) -> None:
    """Write the record to the file in ``arguments``, or where the tests read it."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    file = Path(arguments[0] if arguments else ROOT / "tests" / "data" / "config_keys.json")
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        found[kind] = record(kind)
        print(kind, sum(map(len, found[kind]["answers"].values())), flush=True)
    rows = []
    for kind, one in found.items():
        keys = [
            f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in one["answers"].items()
        ]
        answers = ",\n".join(keys)
        head = f' {json.dumps(kind)}: {{\n  "config": {json.dumps(one["config"])},'
        rows.append(f'{head}\n  "answers": {{\n{answers}\n  }}\n }}')
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
