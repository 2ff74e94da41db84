"""A Hugging Face ``config.json``, read strictly, as the ``config.toml`` of its family says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.hf.config_numbers import read_numbers
from meshc.frontend.checkpoints.hf.generation import FILE as GENERATION
from meshc.frontend.checkpoints.hf.generation import ending_tokens
from meshc.frontend.checkpoints.hf.near import nearest
from meshc.frontend.checkpoints.hf.rope import Rope, read_rope
from meshc.frontend.checkpoints.hf.text_half import text_half
from meshc.frontend.checkpoints.hf.unknown import judge_unread_keys
from meshc.frontend.checkpoints.json_text import JsonText, read_json_object
from meshc.frontend.checkpoints.model_config import (
    SIZE_LIMITS,
    Activation,
    LongScaling,
    ModelConfig,
    Parameter,
)
from meshc.frontend.checkpoints.quantised.method import read_quantization
from meshc.frontend.families import Family, Tables, brought_families, family_named, family_names
from meshc.support.diagnostics import Diagnostics, fail

CONFIG_LIMIT_BYTES = 1 << 20
EPS_LIMIT = 0.1
_HEADED = re.compile(r"(ForCausalLM|LMHeadModel)\Z")

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
_DTYPES: dict[str, str] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
}


def read_config(path: str | Path, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """The model in the Hugging Face directory or ``config.json`` at ``path``.

    Remarks (keys that are not used) go to ``diagnostics``. All faults of the file are raised
    together. Tokens that end a text are those of a ``generation_config.json`` beside it, if it
    names any, as in transformers. Errors: ``checkpoint-unreadable``, ``json-invalid``,
    ``unsupported-architecture``, ``config-missing-key``, ``config-bad-value``,
    ``config-unsupported``.
    """
    file = Path(path)
    if os.path.isdir(file):
        file = file / "config.json"
    text = read_json_object(file, CONFIG_LIMIT_BYTES, "model config")
    config = config_from_json(text, model_name(file), diagnostics)
    ends = ending_tokens(file)
    if any(token >= config.vocab for token in ends):
        fail(
            "config-bad-value",
            f"{GENERATION} beside '{file}' ends texts with tokens {list(ends)}, which do not all "
            f"lie below the vocabulary size {config.vocab}",
            help="get the file again; it belongs to another model",
        )
    return replace(config, eos_ids=ends) if ends else config


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
    found = Diagnostics()
    text = text_half(text, found)
    kind = _read_kind(text)
    family = _families().get(kind) or _by_type(brought_families())[kind]
    tables = family.tables[kind]
    fields = Fields(text.value, text.source.name, found, lambda key: text.span(key))
    config = _read_fields(fields, text, name, family.name, tables)
    read_quantization(fields)
    judge_unread_keys(fields, tables.keys())
    found.raise_errors()
    if diagnostics is not None:
        for message in found.messages:
            diagnostics.add(message)
    return config


@cache
def _families() -> dict[str, Family]:
    """The family of each ``model_type`` that is read without an installed package."""
    return _by_type(family_names())


def _by_type(names: Iterable[str]) -> dict[str, Family]:
    """The family of each ``model_type`` of the families ``names``."""
    return {kind: family for family in map(family_named, names) for kind in family.tables}


@cache
def _architectures() -> dict[str, str]:
    """The ``model_type`` of each class of transformers that is read, as `_families`."""
    return _by_class(family_names())


def _by_class(names: Iterable[str]) -> dict[str, str]:
    families = map(family_named, names)
    return {name: kind for family in families for name, kind in family.architectures.items()}


def _without_heads(classes: Mapping[str, str]) -> dict[str, str]:
    """The ``model_type`` of each of the ``classes`` without its head. Files name it where the head
    is the embedding, or where another tool has left it out, which is seen in the weights."""
    return {_HEADED.sub("Model", name): kind for name, kind in classes.items()}


def _read_kind(text: JsonText) -> str:
    """The model type by ``architectures`` or, when that is absent, by ``model_type``."""
    listed = text.value.get("architectures")
    kind = text.value.get("model_type")
    by_name = _kind_of(text, listed) if listed is not None else None
    of_text = isinstance(kind, str) and (
        kind in _families() or kind in _by_type(brought_families())
    )
    by_type = str(kind) if of_text else None
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
    if len(names) == 1 and isinstance(first, str):
        for known in (_architectures(), _by_class(brought_families())):
            if (kind := (_without_heads(known) | known).get(first)) is not None:
                return kind
    shown = ", ".join(brief(name) for name in names[:4]) or "[]"
    _unsupported(text, "architectures", f"architecture {shown} is not supported", first)


def _supported() -> str:
    return f"supported: {', '.join(f'{a} ({f})' for a, f in _architectures().items())}"


def _unsupported(text: JsonText, key: str, message: str, name: object) -> NoReturn:
    """Refuse the architecture ``name``, and say which one that is read is nearest."""
    notes = [nearest(name, _families(), text.value)] if isinstance(name, str) else []
    fail("unsupported-architecture", message, text.span(key), notes, _supported())


def _read_fields(
    fields: Fields, text: JsonText, name: str, family: str, tables: Tables
) -> ModelConfig:
    rope = read_rope(fields, text, tables)
    bos = fields.token_ids("bos_token_id", SIZE_LIMITS["vocab"])
    eos = fields.token_ids("eos_token_id", SIZE_LIMITS["vocab"])
    numbers = read_numbers(fields, tables, bos + eos)
    size, flags = numbers.sizes, numbers.flags
    if "eos_token_id" not in fields.values and tables.usual_end is not None:
        eos = tuple(end for end in (tables.usual_end,) if end < size["vocab"])
    return ModelConfig(
        name=name,
        family=family,
        hidden=size["hidden"],
        heads=size["heads"],
        kv_heads=size["kv_heads"],
        head_dim=size["head_dim"],
        ffn=size["ffn"],
        vocab=size["vocab"],
        layers=size["layers"],
        max_positions=size["max_positions"],
        eps=fields.number(tables.named.eps, 0.0, EPS_LIMIT, tables.named.usual_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        activation=_read_activation(fields, tables),
        attention_bias=flags.get("attention_bias", False),
        o_bias=flags.get("o_bias", False),
        mlp_bias=flags.get("mlp_bias", False),
        tied_embeddings=flags.get("tied_embeddings", False),
        bos_id=bos[0] if bos else None,
        eos_ids=eos,
        dtype=_read_dtype(fields),
        own={
            **numbers.own,
            **_read_rotated(fields, tables, rope, size["head_dim"]),
            **({tables.local_rope.parameter: rope.local or 0.0} if tables.local_rope else {}),
        },
    )


def _read_activation(fields: Fields, tables: Tables) -> Activation:
    named = tables.named
    found = fields.string(named.activation, _ACTIVATIONS, named.usual_activation)
    return _ACTIVATIONS[named.meant.get(found, found)]


def _read_rotated(
    fields: Fields, tables: Tables, rope: Rope, head_dim: int
) -> dict[str, Parameter]:
    """The lanes of a head that turn, 0 for all, for the parameter of the family, whose default is
    that of one of its models; that each has a factor where RoPE has factors is checked too."""
    turning = int(head_dim * rope.share)
    key = next((k for k in ("rope_parameters", "rope_scaling") if fields.has(k)), "rope_scaling")
    if isinstance(rope.scaling, LongScaling):
        counts = {len(rope.scaling.short), len(rope.scaling.long)}
        if counts != {turning // 2}:
            fields.reject_value(key, f"{turning // 2} short and as many long factors are wanted")
    if tables.rotary is None:
        return {}
    if turning == head_dim:
        return {tables.rotary.parameter: 0}
    if turning % 2 or not turning:
        fields.reject(
            "config-bad-value",
            tables.rotary.key,
            f"{turning} of {head_dim} lanes of a head are to turn: RoPE rotates pairs",
            f"set '{tables.rotary.key}' to a share with an even number of lanes",
        )
    return {tables.rotary.parameter: turning}


def _read_dtype(fields: Fields) -> str | None:
    given = [key for key in ("dtype", "torch_dtype") if fields.has(key)]
    if not given:
        return None
    kinds = [_DTYPES[fields.string(key, _DTYPES)] for key in given]
    if len(set(kinds)) > 1:
        fields.reject_value("torch_dtype", "'dtype' says something else; keep one of the two")
    return kinds[0]
