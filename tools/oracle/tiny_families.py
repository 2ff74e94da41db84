"""Tiny random models of families that are no llamas, saved by Hugging Face transformers.

Usage: python tools/oracle/tiny_families.py [tests/data]

What a directory holds is in ``tiny_models.py``, which makes them.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from safetensors.torch import load_file, save_file
from tiny_models import TinyModel, make
from tiny_models import _sizes as sizes

_PLACE = "tiny_families"


def _model(
    name: str, family: str, settings: dict[str, object], dtype: torch.dtype = torch.float32
) -> TinyModel:
    return TinyModel(name, family, settings, dtype, place=_PLACE)


def _long_rope(pairs: int, **more: object) -> dict[str, object]:
    """LongRoPE with factors for ``pairs``, which all differ."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.125 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.75 * i for i in range(pairs)],
        **more,
    }


def _phi3(common: dict[str, object], **more: object) -> dict[str, object]:
    return {**common, "pad_token_id": 0, **more}


def _partial(
    hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, layers: int
) -> dict[str, object]:
    """The sizes of a decoder whose heads are together as wide as its rows."""
    found = sizes(hidden, heads, kv_heads, hidden // heads, ffn, vocab, layers)
    return {key: value for key, value in found.items() if key != "head_dim"}


def _full(hidden: int, heads: int, ffn: int, vocab: int, layers: int) -> dict[str, object]:
    """The sizes of a decoder whose heads have keys of their own."""
    found = _partial(hidden, heads, heads, ffn, vocab, layers)
    return {key: value for key, value in found.items() if key != "num_key_value_heads"}


def _turned(share: float) -> dict[str, object]:
    """RoPE of this ``share`` of each head, with a base of its own."""
    rope = {"partial_rotary_factor": share, "rope_theta": 5000.0, "rope_type": "default"}
    return {"rope_parameters": rope}


def _granitemoe(
    name: str,
    common: dict[str, object],
    experts: int,
    chosen: int,
    multipliers: tuple[float, float, float, float],
    dtype: torch.dtype = torch.float32,
) -> TinyModel:
    """A mixture whose ``multipliers`` are of embeddings, attention, residuals and logits."""
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier")
    more = dict(zip((*names, "logits_scaling"), multipliers, strict=True))
    counts = {"num_local_experts": experts, "num_experts_per_tok": chosen}
    settings = {**common, **counts, **more}
    return TinyModel(name, "granitemoe", settings, dtype, place="tiny_experts")


def _gpt2(hidden: int, heads: int, vocab: int, layers: int) -> dict[str, object]:
    """The sizes of a gpt2."""
    found = {"n_embd": hidden, "n_head": heads, "vocab_size": vocab, "n_layer": layers}
    return {**found, "n_positions": 24, "bos_token_id": 1, "eos_token_id": 2}


_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_FALCON3 = {"rope_theta": 1000042.0, "mlp_bias": False}

MODELS = (
    _model(
        "phi3-5h1-window",
        "phi3",
        _phi3(sizes(30, 5, 1, 6, 37, 53, 3), sliding_window=5),
    ),
    _model(
        "phi3-4h2-long-bf16",
        "phi3",
        _phi3(
            sizes(24, 4, 2, 6, 31, 47, 2),
            rope_parameters=_long_rope(3),
            original_max_position_embeddings=5,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
    ),
    _model(
        "phi3-3h3-short-partial",
        "phi3",
        _phi3(
            sizes(24, 3, 3, 8, 29, 43, 2),
            rope_parameters=_long_rope(2, partial_rotary_factor=0.5, attention_factor=1.0),
            original_max_position_embeddings=64,
            sliding_window=4,
        ),
    ),
    _model(
        "phi3-4h2-parts",
        "phi3",
        _phi3(
            sizes(32, 4, 2, 8, 29, 43, 2),
            rope_parameters=_long_rope(3, partial_rotary_factor=0.75, attention_factor=1.25),
            original_max_position_embeddings=64,
            sliding_window=None,
        ),
    ),
    _model("gpt_neox-5h-parallel", "gpt_neox", {**_full(40, 5, 31, 53, 3), "rotary_pct": 0.25}),
    _model(
        "gpt_neox-3h-serial-tied-bf16",
        "gpt_neox",
        {
            **_full(36, 3, 26, 47, 2),
            "rotary_pct": 0.5,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
        },
        torch.bfloat16,
    ),
    _model("gpt2-5h-tied", "gpt2", _gpt2(35, 5, 53, 3)),
    _model(
        "gpt2-3h-untied-f16",
        "gpt2",
        {
            **_gpt2(36, 3, 47, 2),
            "n_inner": 41,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
        torch.float16,
    ),
    _model(
        "stablelm-6h2-biased",
        "stablelm",
        {**_partial(48, 6, 2, 31, 53, 2), "use_qkv_bias": True},
    ),
    _model(
        "stablelm-3h1-parallel-bf16",
        "stablelm",
        {
            **_partial(36, 3, 1, 25, 47, 3),
            "partial_rotary_factor": 0.5,
            "use_parallel_residual": True,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
    ),
    _model(
        "starcoder2-5h1-window",
        "starcoder2",
        {**_partial(30, 5, 1, 33, 53, 3), "sliding_window": 5},
    ),
    _model(
        "starcoder2-4h2-plain-f16",
        "starcoder2",
        {**_partial(24, 4, 2, 29, 47, 2), "use_bias": False, "tie_word_embeddings": False},
        torch.float16,
    ),
    _model(
        "internlm2-6h2",
        "llama",
        {
            **sizes(48, 6, 2, 8, 31, 53, 2),
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        },
    ),
    _model("gemma-6h2", "gemma", sizes(30, 6, 2, 8, 37, 53, 2)),
    _model(
        "gemma-4h1-untied-bf16",
        "gemma",
        {**sizes(24, 4, 1, 10, 31, 47, 3), "tie_word_embeddings": False, "hidden_act": "gelu"},
        torch.bfloat16,
    ),
    _model(
        "gemma2-6h2-window",
        "gemma2",
        {
            **sizes(30, 6, 2, 8, 37, 53, 3),
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "tie_word_embeddings": False,
        },
    ),
    _model(
        "gemma2-3h3-capped-bf16",
        "gemma2",
        {
            **sizes(24, 3, 3, 6, 31, 47, 2),
            "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5,
        },
        torch.bfloat16,
    ),
    _model(
        "gemma3-6h2-window",
        "gemma3",
        {
            **sizes(30, 6, 2, 8, 37, 53, 4),
            "sliding_window": 5,
            "sliding_window_pattern": 3,
            "tie_word_embeddings": False,
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    _model(
        "gemma3-3h1-capped-bf16",
        "gemma3",
        {
            **sizes(24, 3, 1, 6, 31, 47, 3),
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 6,
            "final_logit_softcapping": 2.5,
            "tie_word_embeddings": False,
        },
        torch.bfloat16,
    ),
    _model("olmo2-6h2", "olmo2", _partial(36, 6, 2, 37, 53, 2)),
    _model(
        "olmo2-5h1-tied-bf16",
        "olmo2",
        {**_partial(30, 5, 1, 29, 47, 3), "tie_word_embeddings": True},
        torch.bfloat16,
    ),
    _model(
        "olmo2-4h2-biased",
        "olmo2",
        {**_partial(16, 4, 2, 31, 43, 2), "attention_bias": True},
    ),
    _model(
        "smollm3-6h2",
        "smollm3",
        {
            **sizes(30, 6, 2, 8, 37, 53, 4),
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            "no_rope_layers": [1, 0, 1, 0],
        },
    ),
    _model(
        "smollm3-5h1-biased-bf16",
        "smollm3",
        {
            **_partial(30, 5, 1, 29, 47, 5),
            "pad_token_id": 0,
            "attention_bias": True,
            "mlp_bias": True,
        },
        torch.bfloat16,
    ),
    _model("cohere-6h2", "cohere", {**_partial(48, 6, 2, 37, 53, 2), "pad_token_id": 0}),
    _model(
        "smollm3-4h2-yarn",
        "smollm3",
        {
            **sizes(24, 4, 2, 6, 19, 43, 3),
            "pad_token_id": 0,
            "no_rope_layer_interval": 2,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8,
            },
        },
    ),
    _model(
        "cohere-4h2-normed-bf16",
        "cohere",
        {**_partial(32, 4, 2, 19, 43, 2), "pad_token_id": 0, "use_qk_norm": True},
        torch.bfloat16,
    ),
    _model(
        "cohere-3h3-untied-bf16",
        "cohere",
        {
            **_partial(24, 3, 3, 29, 47, 2),
            "pad_token_id": 0,
            "attention_bias": True,
            "logit_scale": 0.8,
            "tie_word_embeddings": False,
        },
        torch.bfloat16,
    ),
    _model(
        "cohere2-6h2-window",
        "cohere2",
        {**_partial(48, 6, 2, 37, 53, 4), "pad_token_id": 0, "sliding_window": 5},
    ),
    _model(
        "cohere2-4h1-pairs-bf16",
        "cohere2",
        {
            **_partial(24, 4, 1, 29, 47, 3),
            "pad_token_id": 0,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        torch.bfloat16,
    ),
    _model("olmo-6h2", "olmo", _partial(36, 6, 2, 37, 53, 2)),
    _model(
        "olmo-4h4-clipped-bf16",
        "olmo",
        {**_partial(24, 4, 4, 31, 47, 2), "clip_qkv": 0.5, "tie_word_embeddings": True},
        torch.bfloat16,
    ),
    _model(
        "olmo-5h1-biased",
        "olmo",
        {**_partial(40, 5, 1, 29, 43, 3), "attention_bias": True, "clip_qkv": 1.25},
    ),
    _model("nemotron-6h2", "nemotron", sizes(30, 6, 2, 8, 37, 53, 2)),
    _model(
        "nemotron-4h1-biased-bf16",
        "nemotron",
        {
            **sizes(24, 4, 1, 8, 29, 47, 3),
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
    ),
    _model("glm4-6h2", "glm4", {**sizes(20, 6, 2, 8, 27, 59, 2), "pad_token_id": 0}),
    _model(
        "glm4-4h1-plain-bf16",
        "glm4",
        {
            **sizes(24, 4, 1, 8, 29, 47, 3),
            "pad_token_id": 0,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
    ),
    _model(
        "exaone4-6h2-window",
        "exaone4",
        {**sizes(30, 6, 2, 8, 37, 53, 4), "sliding_window": 5},
    ),
    _model(
        "exaone4-4h2-full-bf16",
        "exaone4",
        {
            **sizes(24, 4, 2, 8, 29, 47, 2),
            "sliding_window": None,
            "sliding_window_pattern": None,
            "layer_types": ["full_attention"] * 2,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
    ),
    _granitemoe("granitemoe-6h2-5x2", _partial(48, 6, 2, 11, 53, 2), 5, 2, (3.0, 0.4, 1.5, 1.7)),
    _granitemoe(
        "granitemoe-4h1-6x3-tied-bf16",
        {**_partial(24, 4, 1, 9, 47, 2), "tie_word_embeddings": True},
        6,
        3,
        (0.5, 0.3, 0.8, 2.5),
        torch.bfloat16,
    ),
    _granitemoe(
        "granitemoe-3h3-4x1-biased-f16",
        {**_partial(30, 3, 3, 13, 43, 2), "attention_bias": True},
        4,
        1,
        (1.5, 0.25, 0.6, 0.8),
        torch.float16,
    ),
    _model("cohere2-3h3-f16", "cohere2", _partial(30, 3, 3, 25, 41, 5), torch.float16),
    _model(
        "nemotron-5h5-quarter-f16",
        "nemotron",
        {**sizes(25, 5, 5, 8, 23, 43, 2), **_turned(0.25)},
        torch.float16,
    ),
    _model(
        "glm4-3h3-whole-f16",
        "glm4",
        {
            **sizes(21, 3, 3, 6, 25, 43, 2),
            **_turned(1.0),
            "pad_token_id": 0,
            "attention_bias": True,
        },
        torch.float16,
    ),
    _model(
        "exaone4-5h1-llama3-f16",
        "exaone4",
        {**sizes(25, 5, 1, 6, 23, 43, 4), "sliding_window": 4, "rope_parameters": _LLAMA3},
        torch.float16,
    ),
    _model("falcon3-6h2", "llama", {**sizes(30, 6, 2, 10, 37, 53, 2), **_FALCON3}),
    _model(
        "falcon3-4h4-bf16", "llama", {**sizes(24, 4, 4, 8, 29, 47, 3), **_FALCON3}, torch.bfloat16
    ),
    _model(
        "falcon3-3h1-f16", "llama", {**sizes(21, 3, 1, 12, 25, 41, 2), **_FALCON3}, torch.float16
    ),
    # The family that docs/families.md adds.
    TinyModel(
        "glm-6h2",
        "glm",
        {**sizes(20, 6, 2, 8, 27, 59, 2), "pad_token_id": 0, "partial_rotary_factor": 0.5},
        place="tiny_unshipped",
    ),
)


_INTERNLM2 = {
    "model.embed_tokens": "model.tok_embeddings",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "lm_head": "output",
}
"""What internlm2 calls the tensors of a llama."""


def as_internlm2(folder: Path) -> None:
    """Store the llama in ``folder`` as an internlm2, which transformers does not have: for each key
    head one matrix holds its query heads, the key and the value (modeling_internlm2.py, which is
    published with the checkpoints)."""
    config = json.loads((folder / "config.json").read_text())
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = load_file(folder / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        query, key, value = (tensors.pop(f"{block}self_attn.{n}_proj.weight") for n in "qkv")
        groups = [query.reshape(keys, heads // keys, -1, query.shape[-1])]
        groups += [part.reshape(keys, 1, -1, part.shape[-1]) for part in (key, value)]
        joined = torch.cat(groups, 1).reshape(-1, query.shape[-1])
        tensors[f"{block}attention.wqkv.weight"] = joined.contiguous()
    for old, new in _INTERNLM2.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    rope = config.pop("rope_parameters")
    config |= {
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "bias": False,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": rope["rope_type"], "factor": rope["factor"]},
    }
    del config["attention_bias"], config["mlp_bias"], config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str]) -> None:
    """Write every model under the folder in ``arguments``, or where the tests read them."""
    folder = Path(arguments[0] if arguments else "tests/data")
    for model in MODELS:
        make(model, folder / model.place, seed=zlib.crc32(model.name.encode()))
        if model.name.startswith("internlm2"):
            as_internlm2(folder / model.place / model.name)


if __name__ == "__main__":
    main(sys.argv[1:])
