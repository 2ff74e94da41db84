"""The model that the metadata of a GGUF file describes.

The keys are those of every family under the name of its own. Source: the key tables of the GGUF
specification and the writers of llama.cpp's ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np

from meshc.frontend.checkpoints.config import (
    SIZE_LIMITS,
    CheckpointDtype,
    ModelConfig,
    find_conflicts,
)
from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.gguf.header import GgufHeader, read_gguf_header
from meshc.frontend.checkpoints.gguf.rope import read_gguf_rope
from meshc.frontend.checkpoints.hf.config import EPS_LIMIT, model_name
from meshc.frontend.checkpoints.hf.near import nearest
from meshc.frontend.families import family_named, family_names
from meshc.support.diagnostics import Diagnostics, fail

_SIZE_KEYS = {
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "ffn": "feed_forward_length",
    "layers": "block_count",
    "max_positions": "context_length",
    "vocab": "vocab_size",
}
_EPS_KEY = "attention.layer_norm_rms_epsilon"
_OTHER_KEYS = (
    _EPS_KEY,
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
)
_DTYPES: dict[str, CheckpointDtype] = {name.upper(): name for name in get_args(CheckpointDtype)}


def config_from_gguf(path: str | Path, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """The model in the GGUF file ``path``; remarks go to ``diagnostics``.

    Errors: ``checkpoint-unreadable``, ``gguf-invalid``, ``unsupported-architecture``,
    ``config-missing-key``, ``config-bad-value``, ``config-unsupported``.
    """
    return config_from_header(read_gguf_header(path), diagnostics)


def config_from_header(header: GgufHeader, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """As `config_from_gguf`, from a header that was read before."""
    family = _read_family(header)
    found = Diagnostics()
    fields = Fields(header.metadata, str(header.path), found)
    _refuse_split(fields)
    _refuse_unknown(fields, f"{family}.")
    config = _read_fields(fields, header, family)
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return config


def _families() -> tuple[str, ...]:
    """The families whose GGUF files are read."""
    return tuple(name for name in family_names() if family_named(name).gguf)


def _read_family(header: GgufHeader) -> str:
    given = header.metadata.get("general.architecture")
    if isinstance(given, str) and given in _families():
        return given
    fail(
        "unsupported-architecture",
        f"'{header.path}' has the architecture {brief(given)}, which is not supported",
        notes=[_near(given)] if isinstance(given, str) else [],
        help=f"supported: {', '.join(_families())}",
    )


def _near(name: str) -> str:
    """A note on an architecture that is not read, or not from such files."""
    if name in family_names():
        return f"models of the family {name} are read from Hugging Face directories"
    return nearest(name, _families(), {})


def _refuse_split(fields: Fields) -> None:
    if fields.integer("split.count", 0, 1 << 16, default=1) > 1:
        fields.reject(
            "config-unsupported",
            "split.count",
            "this is one part of a split GGUF file, which is not supported",
            "join the parts with llama.cpp's 'llama-gguf-split --merge'",
        )


def _refuse_unknown(fields: Fields, prefix: str) -> None:
    """Keys under the architecture's name define the maths, so each must be understood."""
    known = {prefix + key for key in (*_SIZE_KEYS.values(), *_OTHER_KEYS)}
    for key, value in fields.values.items():
        if key.startswith(prefix) and key not in known and not _is_neutral(key, value):
            fields.reject(
                "config-unsupported",
                key,
                f"'{key}' = {brief(value)} changes the maths and is not supported",
                f"meshc reads plain {', '.join(_families())} models",
            )
    layout = f"{prefix}tensor_data_layout"
    # The old name of the interleaved row order that every llama-type file has.
    fields.string(layout, ("Meta AI original pth",), "Meta AI original pth")


def _is_neutral(key: str, value: object) -> bool:
    """Whether ``value`` switches a feature off: zero or false, or causal attention."""
    if isinstance(value, bool):
        return value == key.endswith("attention.causal")
    return isinstance(value, int | float) and value == 0


def _read_fields(fields: Fields, header: GgufHeader, family: str) -> ModelConfig:
    keys = {name: f"{family}.{key}" for name, key in _SIZE_KEYS.items()}
    size = {
        name: fields.integer(keys[name], 1, SIZE_LIMITS[name])
        for name in ("hidden", "heads", "ffn", "layers", "max_positions")
    }
    kv_heads = fields.integer(keys["kv_heads"], 1, SIZE_LIMITS["kv_heads"], size["heads"])
    vocab = fields.integer(keys["vocab"], 1, SIZE_LIMITS["vocab"], _embedding_rows(header))
    head_dim = None
    if fields.has(keys["head_dim"]):
        head_dim = fields.integer(keys["head_dim"], 1, SIZE_LIMITS["head_dim"])
    bos, eos = (
        fields.token_ids(f"tokenizer.ggml.{kind}_token_id", SIZE_LIMITS["vocab"])
        for kind in ("bos", "eos")
    )
    for conflict in find_conflicts(
        size["hidden"], size["heads"], kv_heads, head_dim, vocab, bos + eos
    ):
        key = keys[conflict.fields[0]]
        if key not in fields.bad:
            fields.reject("config-bad-value", key, conflict.message, "get the file again")
    head_dim = head_dim or size["hidden"] // size["heads"]
    _check_head_dim(fields, family, head_dim)
    theta, scaling = read_gguf_rope(fields, f"{family}.", header, head_dim)
    names = header.tensors
    return ModelConfig(
        name=model_name(header.path),
        family=family,
        hidden=size["hidden"],
        heads=size["heads"],
        ffn=size["ffn"],
        layers=size["layers"],
        max_positions=size["max_positions"],
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        eps=_shortest(fields.number(f"{family}.{_EPS_KEY}", 0.0, EPS_LIMIT)),
        rope_theta=_shortest(theta),
        rope_scaling=scaling,
        activation="silu",
        attention_bias="blk.0.attn_q.bias" in names,
        o_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        tied_embeddings="output.weight" not in names,
        bos_id=bos[0] if bos else None,
        eos_ids=eos,
        dtype=_dtype(header),
    )


def _check_head_dim(fields: Fields, family: str, head_dim: int) -> None:
    for name in ("attention.value_length", "rope.dimension_count"):
        key = f"{family}.{name}"
        if fields.integer(key, 1, SIZE_LIMITS["head_dim"], head_dim) != head_dim:
            fields.reject_value(key, f"the head size, {head_dim}, is wanted")


def _embedding_rows(header: GgufHeader) -> int | None:
    tensor = header.tensors.get("token_embd.weight")
    return tensor.shape[0] if tensor and tensor.shape[0] <= SIZE_LIMITS["vocab"] else None


def _dtype(header: GgufHeader) -> CheckpointDtype | None:
    tensor = header.tensors.get("blk.0.attn_q.weight")
    encoding = tensor.encoding if tensor else None
    return _DTYPES[encoding.name] if encoding else None


def _shortest(number: float) -> float:
    """The shortest decimal that the file's float32 rounds from: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(number)))
