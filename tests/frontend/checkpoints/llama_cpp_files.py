"""GGUF files of checkpoints in Hugging Face's form, laid out as llama.cpp's converter does it.

Names of tensors come from the ``gguf`` package's own map, keys from its writer; what the converter
does to tensors is written here anew. Nothing of meshc is used.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "internlm2": gguf.MODEL_ARCH.INTERNLM2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "olmo": gguf.MODEL_ARCH.OLMO,
    "nemotron": gguf.MODEL_ARCH.NEMOTRON,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
}
"""By the ``model_type`` of a config."""
_PERMUTED = ("llama", "mistral", "mixtral", "granite", "granitemoe", "internlm2", "smollm3", "olmo")
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(.*)")
_OF_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def stored_tensors(folder: Path) -> Tensors:
    """The tensors of ``model.safetensors`` in ``folder`` as float32."""
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    found: Tensors = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        start, stop = (8 + length + at for at in entry["data_offsets"])
        numbers = np.frombuffer(raw[start:stop], _OF_TYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        found[name] = numbers.astype(np.float32).reshape(entry["shape"])
    return found


def write_gguf(
    path: Path,
    config: Config,
    tensors: Tensors,
    kind: str = "F32",
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """The GGUF file ``path`` of a checkpoint: matrices whose rows fill blocks in the type ``kind``,
    all else in F32; ``change`` adds keys of its own."""
    architecture = ARCHITECTURES[config["model_type"]]
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_keys(writer, config)
    change(writer)
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, tensor in _converted(config, tensors).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, name
        _add_tensor(writer, stored, tensor, kind)
    for name, factors in _rope_factors(config).items():
        writer.add_tensor(f"{name}.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str) -> None:
    """A tensor without axes of one element, as the converter squeezes them."""
    tensor = np.ascontiguousarray(tensor.reshape([n for n in tensor.shape if n > 1] or [1]))
    wanted = gguf.GGMLQuantizationType[kind]
    fills = tensor.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
    if kind == "F32" or tensor.ndim < 2 or not fills or "ffn_gate_inp" in name:
        writer.add_tensor(name, tensor.astype(np.float32))
    else:
        writer.add_tensor(name, quantize(tensor, wanted), raw_dtype=wanted)


def _permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Lanes i and i + n/2 of each head side by side."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _converted(config: Config, tensors: Tensors) -> Tensors:
    """The tensors under the names that the map of the package knows, as GGUF files hold them."""
    kind = config["model_type"]
    found: Tensors = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match:
            merged = f"{match[1]}.experts.{match[3]}"
            if kind == "mixtral":  # the map knows the names of the first converter
                merged = merged.replace("model.", "").replace("block_sparse_moe", "feed_forward")
            experts.setdefault(merged, {})[int(match[2])] = tensor
        else:
            found |= _of(kind)(name, tensor, config)
    for name, parts in experts.items():
        found[name] = np.stack([parts[number] for number in range(len(parts))])
    return found


def _of(kind: str) -> Callable[[str, np.ndarray, Config], Tensors]:
    special = {"gpt2": _gpt2, "internlm2": _internlm2, "gpt_oss": _gpt_oss}
    special |= {"granitemoe": _granitemoe}
    if kind.startswith(("gemma", "nemotron")):
        return _gains_less_one
    return special.get(kind, _llama if kind in _PERMUTED else _plain)


def _plain(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    return {name: tensor}


def _llama(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    heads = config["num_attention_heads"]
    for part, count in (("q_proj", heads), ("k_proj", config.get("num_key_value_heads", heads))):
        if f".{part}." in name:
            return {name: _permuted(tensor, count)}
    return {name: tensor}


def _gains_less_one(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    return {name: tensor + 1 if name.endswith("norm.weight") else tensor}


def _granitemoe(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    if not name.endswith("input_linear.weight"):
        return _llama(name, tensor, config)
    prefix, halves = name.split("block_sparse_moe")[0], np.split(tensor, 2, axis=1)
    ends = (f"block_sparse_moe.experts.{part}.weight" for part in ("w1", "w3"))
    renamed = (f"{prefix}{end}".replace("model.", "").replace("block_sparse_moe", "feed_forward")
               for end in ends)  # fmt: skip
    return dict(zip(renamed, halves, strict=True))


def _gpt2(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    turned = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return {name: tensor.T if turned else tensor}


def _internlm2(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    if not name.endswith("wqkv.weight"):
        return {name: tensor}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    lanes = config["hidden_size"] // heads
    whole = tensor.reshape(groups, heads // groups + 2, lanes, -1)
    parts = {"wq": (whole[:, :-2], heads), "wk": (whole[:, -2], groups), "wv": (whole[:, -1], 0)}
    found = {}
    for part, (rows, count) in parts.items():
        matrix = rows.reshape(-1, rows.shape[-1])
        found[name.replace("wqkv", part)] = _permuted(matrix, count) if count else matrix
    return {n.replace(".attention.w", ".self_attn."). replace(".weight", "_proj.weight"): t
            for n, t in found.items()}  # fmt: skip


def _gpt_oss(name: str, tensor: np.ndarray, config: Config) -> Tensors:
    if name.endswith("sinks"):
        return {f"{name}.weight": tensor}
    if "experts.gate_up_proj" in name:
        bias = name.endswith("_bias")
        turned = tensor if bias else tensor.swapaxes(-1, -2)
        axis = -1 if bias else -2
        return {
            f"{name.split('gate_up_proj')[0]}{part}_proj.{'bias' if bias else 'weight'}": np.take(
                turned, range(start, turned.shape[axis], 2), axis
            )
            for part, start in (("gate", 0), ("up", 1))
        }
    if name.endswith("experts.down_proj_bias"):
        return {name.replace("_bias", ".bias"): tensor}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": tensor.swapaxes(-1, -2)}
    return {name: tensor}


def _rope(config: Config) -> Config:
    """How RoPE is scaled in layers that see everything."""
    found = config.get("rope_parameters") or {}
    return found.get("full_attention", found)


def _rope_factors(config: Config) -> dict[str, list[float]]:
    """Tensors that stretch frequencies pair by pair."""
    rope = _rope(config)
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}": rope[f"{kind}_factor"] for kind in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    lanes = config["head_dim"]
    low, high = (rope[f"{end}_freq_factor"] for end in ("low", "high"))
    context = rope["original_max_position_embeddings"]
    found = []
    for pair in range(lanes // 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (2 * pair / lanes)
        smooth = (context / wave - low) / (high - low)
        blend = 1 / ((1 - smooth) / rope["factor"] + smooth)
        whole = 1.0 if wave < context / high else rope["factor"]
        found.append(blend if context / high <= wave <= context / low else whole)
    return {"rope_freqs": found}


def _add_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    kind = config["model_type"]
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    writer.add_block_count(config.get("num_hidden_layers", config.get("n_layer")))
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config.get("intermediate_size", 4 * hidden))
    writer.add_head_count(heads)
    if "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if name in config:
            writer.add_layer_norm_eps(config[name])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config and kind != "phi3":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    _add_rope_keys(writer, config, hidden // heads)
    _add_expert_keys(writer, config)
    {
        "gemma2": _gemma2_keys,
        "gemma3_text": _gemma3_keys,
        "phi3": _window_key,
        "gpt_oss": _window_key,
        "granite": _granite_keys,
        "granitemoe": _granite_keys,
        "cohere": _cohere_keys,
        "cohere2": _cohere2_keys,
        "stablelm": _stablelm_keys,
        "olmo": _olmo_keys,
    }.get(kind, lambda writer, config: None)(writer, config)


def _olmo_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_layer_norm_eps(1e-5)
    if config.get("clip_qkv") is not None:
        writer.add_clamp_kqv(config["clip_qkv"])


def _add_rope_keys(writer: gguf.GGUFWriter, config: Config, lanes: int) -> None:
    kind, rope = config["model_type"], _rope(config)
    lanes = config.get("head_dim", lanes)
    if kind in ("phi3", "stablelm", "nemotron", "glm4"):
        writer.add_rope_dimension_count(int(lanes * rope.get("partial_rotary_factor", 1.0)))
    elif kind in _PERMUTED:
        writer.add_rope_dimension_count(lanes)
        writer.add_vocab_size(config["vocab_size"])
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is not None and not kind.startswith("gemma2"):
        writer.add_rope_freq_base(theta)
    scaled = rope.get("rope_type")
    if scaled in ("linear", "yarn", "longrope"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaled))
    if scaled in ("linear", "yarn"):
        writer.add_rope_scaling_factor(rope["factor"])
    if scaled == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind == "phi3":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        if scaled == "longrope":
            stretch = config["max_position_embeddings"] / original
            size = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
            writer.add_rope_scaling_attn_factors(rope.get("attention_factor", size))


def _add_expert_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    count = config.get("num_local_experts", config.get("num_experts"))
    if count is None:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _window_key(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"] or 0)


def _gemma2_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    _window_key(writer, config)


def _gemma3_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    _window_key(writer, config)


def _granite_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _cohere_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_logit_scale(config["logit_scale"])


def _cohere2_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    _cohere_keys(writer, config)
    _window_key(writer, config)


def _stablelm_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_parallel_residual(config.get("use_parallel_residual", True))
