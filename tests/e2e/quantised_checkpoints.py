"""Small checkpoints with quantised weights, for runs of whole models."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"float16": "F16", "float32": "F32", "int32": "I32", "uint8": "F8_E4M3"}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
}
SHAPES = {
    "self_attn.q_proj": (256, 128),
    "self_attn.k_proj": (128, 128),
    "self_attn.v_proj": (128, 128),
    "self_attn.o_proj": (128, 256),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}
METHODS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "sym": False, "desc_act": False},
}


def _words(random: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Words of eight codes; no zero point of GPTQ is 15."""
    nibbles = random.integers(0, 15, (*shape, 8), dtype=np.uint32)
    found = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return np.asarray(found).view(np.int32)


def int4(random: np.random.Generator, method: str, group: int) -> dict[str, np.ndarray]:
    """A random checkpoint of AWQ or GPTQ."""
    tensors: dict[str, np.ndarray] = {}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = random.standard_normal((64, 128)).astype(np.float16)
    tensors["model.norm.weight"] = np.ones(128, np.float16)
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for norm in ("input", "post_attention"):
            tensors[f"{prefix}.{norm}_layernorm.weight"] = np.ones(128, np.float16)
        for name, (outputs, inputs) in SHAPES.items():
            stem, groups = f"{prefix}.{name}", inputs // group
            packed = (inputs, outputs // 8) if method == "awq" else (inputs // 8, outputs)
            tensors[f"{stem}.qweight"] = _words(random, packed)
            tensors[f"{stem}.qzeros"] = _words(random, (groups, outputs // 8))
            scales = random.standard_normal((groups, outputs)) / 64
            tensors[f"{stem}.scales"] = scales.astype(np.float16)
            if method == "gptq":
                tensors[f"{stem}.g_idx"] = np.arange(inputs, dtype=np.int32) // group
    return tensors


def save(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    quantization: object,
    config: Mapping[str, Any] = CONFIG,
) -> Path:
    entries: dict[str, Any] = {}
    body = b""
    for name, tensor in tensors.items():
        place = [len(body), len(body) + tensor.nbytes]
        kind = TYPES[tensor.dtype.name]
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": place}
        body += tensor.tobytes()
    text = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    said = {**config, **({"quantization_config": quantization} if quantization else {})}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def fp8(random: np.random.Generator, scales: str) -> dict[str, np.ndarray]:
    """A random checkpoint in fp8 with a scale of each ``tensor``, ``channel`` or ``block`` of 128 x
    128."""
    plain = {n: t for n, t in int4(random, "awq", 32).items() if t.dtype == np.float16}
    tensors = {name: array for name, array in plain.items() if not name.endswith(".scales")}
    for layer in range(2):
        for name, (outputs, inputs) in SHAPES.items():
            stem = f"model.layers.{layer}.{name}"
            codes = random.integers(0, 127, (outputs, inputs)).astype(np.uint8)
            codes |= random.integers(0, 2, codes.shape).astype(np.uint8) << 7
            shape = {
                "tensor": (),
                "channel": (outputs, 1),
                "block": (-(-outputs // 128), -(-inputs // 128)),
            }[scales]
            factors = random.uniform(0.5, 1.5, shape) / 1024
            called = "weight_scale_inv" if scales == "block" else "weight_scale"
            tensors[f"{stem}.weight"] = codes
            tensors[f"{stem}.{called}"] = np.array(factors, np.float32)
    return tensors


MIXTURE = CONFIG | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}
"""The config of a mixture of experts."""


def fp8_mixture(random: np.random.Generator) -> dict[str, np.ndarray]:
    """A random checkpoint in fp8 of `MIXTURE`, with scales of channels."""
    tensors = fp8(random, "channel")
    places = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        moe = f"{prefix}.block_sparse_moe"
        gate = random.standard_normal((5, 128)).astype(np.float16)
        tensors[f"{moe}.gate.weight"] = gate
        for place, name in places.items():
            weight = tensors.pop(f"{prefix}.mlp.{name}.weight")
            scale = tensors.pop(f"{prefix}.mlp.{name}.weight_scale")
            for expert in range(5):
                stem = f"{moe}.experts.{expert}.{place}"
                tensors[f"{stem}.weight"] = random.permuted(weight, axis=0)
                factors = scale * random.uniform(0.5, 1.5, scale.shape)
                tensors[f"{stem}.weight_scale"] = factors.astype(np.float32)
    return tensors


def rounded_by_ggml(form: str, folder: Path) -> list[Path]:
    """Two random checkpoints of numbers, of which the second has those of the first as ggml's
    quantiser rounds them to blocks of ``form``."""
    import gguf

    kind = gguf.GGMLQuantizationType[form.upper()]
    random = np.random.default_rng(4)
    tensors = int4(random, "awq", 32)
    plain = {name: array for name, array in tensors.items() if array.dtype == np.float16}
    plain = {name: array for name, array in plain.items() if not name.endswith(".scales")}
    rounded = dict(plain)
    for name, (outputs, inputs) in SHAPES.items():
        for layer in range(2):
            weight = (random.standard_normal((outputs, inputs)) / 8).astype(np.float16)
            stem = f"model.layers.{layer}.{name}.weight"
            blocks = gguf.quants.quantize(weight.astype(np.float32), kind)
            plain[stem] = weight
            rounded[stem] = gguf.quants.dequantize(blocks, kind)
    table = gguf.quants.quantize(plain["lm_head.weight"].astype(np.float32), kind)
    rounded["lm_head.weight"] = gguf.quants.dequantize(table, kind)
    folders = [folder / "plain", folder / "rounded"]
    for own, held in zip(folders, (plain, rounded), strict=True):
        own.mkdir()
        save(own, held, None)
    return folders
