"""Model files written byte by byte, valid ones and broken ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.frontend.checkpoints import ModelConfig
from meshc.support.diagnostics import Diagnostic, MeshcError, known_codes

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"
TINY_NAMES = tuple(sorted(folder.name for folder in TINY.iterdir()))

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "eos_token_id": None,
}


def config_file(folder: Path, changes: Mapping[str, Any]) -> Path:
    """The config.json of `LLAMA_CONFIG` with ``changes``; the value `...` removes a key."""
    facts = {key: value for key, value in {**LLAMA_CONFIG, **changes}.items() if value is not ...}
    file = folder / "small" / "config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(facts, indent=2))
    return file


def model_config(**changes: Any) -> ModelConfig:
    """The model of `LLAMA_CONFIG`, changed."""
    facts: dict[str, Any] = {
        "name": "small",
        "family": "llama",
        "hidden": 32,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "ffn": 64,
        "vocab": 96,
        "layers": 2,
        "eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "activation": "silu",
        "attention_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "tied_embeddings": False,
        "max_positions": 128,
        "bos_id": None,
        "eos_ids": (),
        "dtype": "f32",
    }
    return ModelConfig(**{**facts, **changes})


def diagnosed(code: str, call: Any) -> tuple[Diagnostic, ...]:
    """Run ``call``, which must fail with ``code`` among its errors, each a known code."""
    with pytest.raises(MeshcError) as caught:
        call()
    found = caught.value.diagnostics
    assert code in [d.code for d in found], str(caught.value)
    for diagnostic in found:
        assert diagnostic.code in known_codes()
        assert diagnostic.help
        assert diagnostic.render()
    return found


def hf_tensors(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors of ``config`` under their Hugging Face names and shapes."""
    random = np.random.default_rng(seed)
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, config.hidden),
        "model.norm.weight": (config.hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab, config.hidden)
    outputs = {"q": q_width, "k": kv_width, "v": kv_width}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (config.hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (config.hidden,)
        for part in ("q", "k") if config.family == "qwen3" else ():
            shapes[f"{prefix}.self_attn.{part}_norm.weight"] = (config.head_dim,)
        for part, width in outputs.items():
            shapes[f"{prefix}.self_attn.{part}_proj.weight"] = (width, config.hidden)
            if config.attention_bias:
                shapes[f"{prefix}.self_attn.{part}_proj.bias"] = (width,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (config.hidden, q_width)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (config.ffn, config.hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (config.ffn, config.hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (config.hidden, config.ffn)
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray], dtype: str = "F32", header: Mapping[str, Any] | None = None
) -> bytes:
    """A safetensors file; ``header`` entries replace the true ones."""
    entries: dict[str, Any] = {}
    body = b""
    for name, tensor in tensors.items():
        raw = encode_floats(tensor, dtype)
        place = [len(body), len(body) + len(raw)]
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": place}
        body += raw
    text = json.dumps({**entries, **(header or {})}).encode()
    return struct.pack("<Q", len(text)) + text + body


def encode_floats(tensor: np.ndarray, dtype: str) -> bytes:
    """``tensor`` as F32, F16 or BF16 (truncated) bytes."""
    if dtype == "BF16":
        return (tensor.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return tensor.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


GGUF_TYPES = {
    "u8": 0,
    "u16": 2,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "str": 8,
    "arr": 9,
    "u64": 10,
}
_FORMATS = {
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "i32": "<i",
    "f32": "<f",
    "bool": "<?",
    "u64": "<Q",
}


def gguf_string(text: str | bytes) -> bytes:
    """A GGUF string: its length, then its bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind: str, value: Any) -> bytes:
    """The bytes of one metadata value; ``kind`` is a key of `GGUF_TYPES`, or ``[kind]``."""
    if kind.startswith("["):
        inner = kind[1:-1]
        items = b"".join(_bare(inner, item) for item in value)
        return struct.pack("<IIQ", 9, GGUF_TYPES[inner], len(value)) + items
    return struct.pack("<I", GGUF_TYPES[kind]) + _bare(kind, value)


def _bare(kind: str, value: Any) -> bytes:
    return gguf_string(value) if kind == "str" else struct.pack(_FORMATS[kind], value)


def gguf_bytes(
    pairs: Sequence[tuple[str, str, Any]],
    tensors: Sequence[tuple[str, tuple[int, ...], int, bytes]] = (),
    alignment: int = 32,
) -> bytes:
    """A GGUF version 3 file from (key, kind, value) and (name, shape, type id, data)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, kind, value in pairs:
        head += gguf_string(key) + gguf_value(kind, value)
    body = b""
    for name, shape, type_id, raw in tensors:
        dims = b"".join(struct.pack("<Q", extent) for extent in shape[::-1])
        head += gguf_string(name) + struct.pack("<I", len(shape)) + dims
        head += struct.pack("<IQ", type_id, len(body))
        body += raw + b"\0" * (-len(raw) % alignment)
    return head + b"\0" * (-len(head) % alignment) + body


def gguf_pairs(config: ModelConfig, **changes: Any) -> list[tuple[str, str, Any]]:
    """The metadata of ``config``; ``changes`` maps a bare key to (kind, value) or None."""
    family = config.family
    bare: dict[str, tuple[str, Any] | None] = {
        "block_count": ("u32", config.layers),
        "context_length": ("u32", config.max_positions),
        "embedding_length": ("u32", config.hidden),
        "feed_forward_length": ("u32", config.ffn),
        "attention.head_count": ("u32", config.heads),
        "attention.head_count_kv": ("u32", config.kv_heads),
        "attention.layer_norm_rms_epsilon": ("f32", config.eps),
        "rope.freq_base": ("f32", config.rope_theta),
        "rope.dimension_count": ("u32", config.head_dim),
        "attention.key_length": ("u32", config.head_dim),
        "attention.value_length": ("u32", config.head_dim),
        **changes,
    }
    own = [(f"{family}.{key}", *value) for key, value in bare.items() if value]
    return [("general.architecture", "str", family), *own]


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf: str) -> str:
    """The GGUF name of the Hugging Face tensor ``hf``."""
    stem, _, kind = hf.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def permute_rows(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rotate-half rows to the interleaved order of llama-type GGUF files, one row at a time."""
    rows = tensor.reshape(heads, tensor.shape[0] // heads, -1)
    half = rows.shape[1] // 2
    order = [source for i in range(half) for source in (i, i + half)]
    return rows[:, order].reshape(tensor.shape)


def gguf_tensors(
    config: ModelConfig, tensors: Mapping[str, np.ndarray]
) -> list[tuple[str, np.ndarray]]:
    """``tensors`` under GGUF names, q and k permuted for the llama family."""
    listed = []
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(part)
        if heads and config.family == "llama":
            tensor = permute_rows(tensor, heads)
        listed.append((gguf_name(name), tensor))
    return listed


def gguf_model_bytes(config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> bytes:
    """A whole float32 GGUF file."""
    return gguf_bytes(
        gguf_pairs(config),
        [
            (name, tensor.shape, 0, tensor.astype("<f4").tobytes())
            for name, tensor in gguf_tensors(config, tensors)
        ],
    )


# Token types of GGUF vocabularies.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def byte_letters() -> list[str]:
    """The 256 letters of byte-level BPE, from GPT-2's published rule."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def bpe_pairs(
    merges: list[tuple[str, str]], pre: str, extra: list[tuple[str, int]], **changes: Any
) -> list[tuple[str, str, Any]]:
    """A byte-level BPE vocabulary as metadata; ``extra`` are further (word, type) tokens."""
    tokens = [*byte_letters(), *(a + b for a, b in merges), *(word for word, _ in extra)]
    types = [NORMAL] * (256 + len(merges)) + [kind for _, kind in extra]
    facts = {
        "model": ("str", "gpt2"),
        "pre": ("str", pre),
        "tokens": ("[str]", tokens),
        "token_type": ("[i32]", types),
        "merges": ("[str]", [f"{a} {b}" for a, b in merges]),
        **changes,
    }
    return [(f"tokenizer.ggml.{key}", *value) for key, value in facts.items() if value]


BPE_VOCABULARY = bpe_pairs([("a", "b")], "gpt-2", [])
