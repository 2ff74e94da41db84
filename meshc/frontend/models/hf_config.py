"""Hugging Face ``config.json`` of the llama, qwen2 and deepseek_v2 families, read strictly.

Defaults of absent keys are those of ``LlamaConfig``, ``MistralConfig`` and ``Qwen2Config`` in
transformers; what deepseek_v2 has beside is read by ``hf_deepseek.py``. A mistral without a
sliding window computes what a llama does, and is read as one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn

from meshc.frontend.models.config import (
    SIZE_LIMITS,
    Activation,
    CheckpointDtype,
    Family,
    ModelConfig,
    find_conflicts,
)
from meshc.frontend.models.fields import Fields, brief
from meshc.frontend.models.hf_deepseek import EXPERT_KEYS, read_latent
from meshc.frontend.models.hf_near import nearest
from meshc.frontend.models.hf_rope import LATENT_TYPES, PLAIN_TYPES, read_rope
from meshc.frontend.models.hf_unknown import judge_unread_keys
from meshc.frontend.models.json_text import JsonText, read_json_object
from meshc.support.diagnostics import Diagnostics, fail

CONFIG_LIMIT_BYTES = 1 << 20
EPS_LIMIT = 0.1

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}
"""The ``model_type`` of each class of transformers that is read."""
_FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "deepseek_v2": "deepseek_v2",
}
_MISTRAL_KV_HEADS = 8
_MISTRAL_WINDOW = 4096
_KEYS = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "max_positions": "max_position_embeddings",
}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DTYPES: dict[str, CheckpointDtype] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
}


def read_config(path: str | Path, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """The model in the Hugging Face directory or ``config.json`` at ``path``.

    Remarks (keys that are not used) go to ``diagnostics``. All faults of the file are raised
    together. Errors: ``checkpoint-unreadable``, ``json-invalid``, ``unsupported-architecture``,
    ``config-missing-key``, ``config-bad-value``, ``config-unsupported``.
    """
    file = Path(path)
    if os.path.isdir(file):
        file = file / "config.json"
    text = read_json_object(file, CONFIG_LIMIT_BYTES, "model config")
    return config_from_json(text, model_name(file), diagnostics)


def model_name(file: Path) -> str:
    """A name for the model in ``file``: of its directory for a ``config.json``, else its own.

    Only letters, digits, ``-``, ``_`` and ``.`` are kept, so it is safe in any text.
    """
    stem = file.absolute().parent.name if file.name == "config.json" else file.stem
    return re.sub(r"[^A-Za-z0-9_.]+", "-", stem).strip("-.")[:64] or "model"


def config_from_json(
    text: JsonText, name: str, diagnostics: Diagnostics | None = None
) -> ModelConfig:
    """The model called ``name`` that the parsed config ``text`` describes; as `read_config`."""
    kind = _read_kind(text)
    family = _FAMILIES[kind]
    found = Diagnostics()
    fields = Fields(text.value, text.source.name, found, lambda key: text.span(key))
    config = _read_fields(fields, text, name, kind)
    judge_unread_keys(fields, EXPERT_KEYS if family == "deepseek_v2" else frozenset())
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return config


def _read_kind(text: JsonText) -> str:
    """The model type by ``architectures`` or, when that is absent, by ``model_type``."""
    listed = text.value.get("architectures")
    kind = text.value.get("model_type")
    by_name = _kind_of(text, listed) if listed is not None else None
    by_type = next((known for known in _FAMILIES if known == kind), None)
    if kind is not None and by_type is None:
        _unsupported(text, "model_type", f"model type {brief(kind)} is not supported", kind)
    if by_name and by_type and by_name != by_type:
        message = f"model type '{by_type}' does not belong to the architecture named"
        fail("unsupported-architecture", message, text.span("model_type"), help=_supported())
    found = by_name or by_type
    if found is None:
        message = f"'{text.source.name}' names no architecture"
        fail("unsupported-architecture", message, help=_supported())
    return found


def _kind_of(text: JsonText, listed: object) -> str:
    names = listed if isinstance(listed, list) else [listed]
    first = names[0] if names else None
    if len(names) == 1 and isinstance(first, str) and first in _ARCHITECTURES:
        return _ARCHITECTURES[first]
    shown = ", ".join(brief(name) for name in names[:4]) or "[]"
    _unsupported(text, "architectures", f"architecture {shown} is not supported", first)


def _supported() -> str:
    return f"supported: {', '.join(f'{a} ({f})' for a, f in _ARCHITECTURES.items())}"


def _unsupported(text: JsonText, key: str, message: str, name: object) -> NoReturn:
    """Refuse the architecture ``name``, and say which one that is read is nearest."""
    notes = [nearest(name, _FAMILIES, text.value)] if isinstance(name, str) else []
    fail("unsupported-architecture", message, text.span(key), notes, _supported())


def _read_fields(fields: Fields, text: JsonText, name: str, kind: str) -> ModelConfig:
    family = _FAMILIES[kind]
    size = {
        key: fields.integer(_KEYS[key], 1, SIZE_LIMITS[key])
        for key in ("hidden", "heads", "ffn", "vocab", "layers", "max_positions")
    }
    kv_heads = _read_kv_heads(fields, size["heads"], kind)
    head_dim = None
    rope = read_rope(fields, text, LATENT_TYPES if family == "deepseek_v2" else PLAIN_TYPES)
    latent = None
    if family == "deepseek_v2":
        latent = read_latent(fields, size["layers"], size["heads"], kv_heads)
        head_dim = latent.query + latent.rope
    elif fields.has("head_dim"):
        head_dim = fields.integer("head_dim", 1, SIZE_LIMITS["head_dim"])
    bos = fields.token_ids("bos_token_id", SIZE_LIMITS["vocab"])
    eos = fields.token_ids("eos_token_id", SIZE_LIMITS["vocab"])
    bias = fields.boolean("attention_bias", family == "qwen2")
    _check_qwen2(fields, family, bias)
    _check_mistral(fields, kind)
    _check_window(fields, family, size["layers"])
    _check_sizes(fields, size, kv_heads, head_dim, bos + eos)
    return ModelConfig(
        name=name,
        family=family,
        **size,
        kv_heads=kv_heads,
        head_dim=head_dim or size["hidden"] // size["heads"],
        eps=fields.number("rms_norm_eps", 0.0, EPS_LIMIT),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        activation=_ACTIVATIONS[fields.string("hidden_act", _ACTIVATIONS, "silu")],
        attention_bias=bias,
        o_bias=bias and family == "llama",
        mlp_bias=fields.boolean("mlp_bias", False),
        tied_embeddings=fields.boolean("tie_word_embeddings", False),
        bos_id=bos[0] if bos else None,
        eos_ids=eos,
        dtype=_read_dtype(fields),
        latent=latent,
    )


def _check_sizes(
    fields: Fields, size: dict[str, int], kv_heads: int, head_dim: int | None, ids: tuple[int, ...]
) -> None:
    conflicts = find_conflicts(
        size["hidden"], size["heads"], kv_heads, head_dim, size["vocab"], ids
    )
    for conflict in conflicts:
        keys = [_KEYS[name] for name in conflict.fields]
        if fields.bad.isdisjoint(keys):
            # An absent key has no place in the text: point at one that is there.
            shown = next((key for key in keys if fields.has(key)), keys[0])
            help_text = f"make {' and '.join(keys)} agree"
            fields.reject("config-bad-value", shown, conflict.message, help_text)


def _read_kv_heads(fields: Fields, heads: int, kind: str) -> int:
    """As many as heads where the key is absent or null, but for a mistral without the key."""
    key = _KEYS["kv_heads"]
    absent = kind == "mistral" and key not in fields.values
    usual = _MISTRAL_KV_HEADS if absent else heads
    return fields.integer(key, 1, SIZE_LIMITS["kv_heads"], default=usual)


def _check_mistral(fields: Fields, kind: str) -> None:
    """Transformers gives a mistral no biases, and a window unless it is told not to."""
    if kind != "mistral":
        return
    for key in ("attention_bias", "mlp_bias"):
        if fields.values.get(key) is True:
            fields.reject_value(key, "mistral has no biases")
    if "sliding_window" not in fields.values:
        message = f"mistral without 'sliding_window' has a window of {_MISTRAL_WINDOW} tokens"
        _refuse_window(fields, "sliding_window", message)


def _check_qwen2(fields: Fields, family: Family, bias: bool) -> None:
    if family == "qwen2" and not bias:
        fields.reject_value("attention_bias", "qwen2 always has q, k and v biases")
    if family == "qwen2" and fields.values.get("mlp_bias") is True:
        fields.reject_value("mlp_bias", "qwen2 has no bias in its MLP")


def _check_window(fields: Fields, family: Family, layers: int) -> None:
    """Refuse attention that does not see the whole context."""
    kinds = fields.values.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)
    ):
        _refuse_window(fields, "layer_types", "only layers of type full_attention are supported")
    if family != "qwen2" and fields.has("sliding_window"):
        _refuse_window(fields, "sliding_window", "sliding-window attention is not supported")
    if not fields.boolean("use_sliding_window", False):
        return
    # qwen2: layers from max_window_layers on slide; a window without layers is no window.
    first = fields.integer("max_window_layers", 0, SIZE_LIMITS["layers"], default=28)
    if kinds is None and fields.has("sliding_window") and first < layers:
        message = f"layers from {first} on use sliding-window attention, which is not supported"
        _refuse_window(fields, "use_sliding_window", message)


def _refuse_window(fields: Fields, key: str, message: str) -> None:
    help_text = (
        "meshc computes full causal attention in every layer, as llama does, and mistral where "
        "'sliding_window' is null"
    )
    fields.reject("config-unsupported", key, message, help_text)


def _read_dtype(fields: Fields) -> CheckpointDtype | None:
    given = [key for key in ("dtype", "torch_dtype") if fields.has(key)]
    if not given:
        return None
    kinds = [_DTYPES[fields.string(key, _DTYPES)] for key in given]
    if len(set(kinds)) > 1:
        fields.reject_value("torch_dtype", "'dtype' says something else; keep one of the two")
    return kinds[0]
