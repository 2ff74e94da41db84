"""The shape of a model for serving, from a Hugging Face configuration.

Only what a token loads and computes is read: no weights, and nothing that changes numbers but not
work (norms, positions, activations). Dense and mixture-of-experts decoders with grouped-query
attention are understood; what is not is refused.
"""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from meshc.cost.served_models import LayerShape, ServedModel
from meshc.frontend.checkpoints import catalogue_names
from meshc.frontend.checkpoints.config import find_conflicts
from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.json_text import JsonText, parse_json_object, read_json_object
from meshc.support.diagnostics import Diagnostics, fail

_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")
_KEYS = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
"""Keys of the sizes that conflicts are told by."""
_LIMIT_BYTES = 1 << 20
_MOST = 1 << 20

_SHAPES = resources.files("meshc.serving") / "data" / "models"
_CATALOGUE = resources.files("meshc.frontend") / "catalogue"


def served_model_names() -> tuple[str, ...]:
    """The names of built-in models that can be served, sorted."""
    own = (e.name.removesuffix(".json") for e in _SHAPES.iterdir() if e.name.endswith(".json"))
    return tuple(sorted({*own, *catalogue_names()}))


def served_model(text: str) -> ServedModel:
    """The built-in model ``text``, or that of a ``config.json`` or of a directory with one.

    Errors: ``unknown-model``, ``checkpoint-unreadable``, ``json-invalid``,
    ``unsupported-architecture``, ``config-missing-key``, ``config-bad-value``.
    """
    for folder in (_SHAPES, _CATALOGUE):
        entry = folder / f"{text}.json"
        if text in served_model_names() and entry.is_file():
            return _shape(parse_json_object(entry.read_bytes(), f"{text}.json"), text)
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix != ".json" and not path.exists():
        close = difflib.get_close_matches(text.lower(), served_model_names(), n=3, cutoff=0.5)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        fail(
            "unknown-model",
            f"no built-in model is called '{text}'",
            help=f"{guess}models that can be served: {', '.join(served_model_names())}",
        )
    return _shape(read_json_object(path, _LIMIT_BYTES, "configuration"), path.parent.name or text)


def _shape(config: JsonText, name: str) -> ServedModel:
    report = Diagnostics()
    fields = Fields(config.value, config.source.name, report, config.span)
    family = str(fields.values.get("model_type"))
    if family not in _DENSE + _EXPERTS:
        fail(
            "unsupported-architecture",
            f"models of type '{family}' have no costs of serving",
            config.span("model_type"),
            help=f"those of {', '.join(_DENSE + _EXPERTS)} have",
        )
    layers = fields.integer("num_hidden_layers", 1, 1024)
    hidden = fields.integer("hidden_size", 1, _MOST)
    heads = fields.integer("num_attention_heads", 1, 4096)
    found = ServedModel(
        name=name,
        hidden=hidden,
        heads=heads,
        key_heads=fields.integer("num_key_value_heads", 1, heads, heads),
        head_dim=fields.integer("head_dim", 1, 4096, max(1, hidden // heads)),
        vocabulary=fields.integer("vocab_size", 1, 1 << 24),
        layers=tuple(_layer(fields, family, index) for index in range(layers)),
        tied=fields.values.get("tie_word_embeddings") is True,
    )
    given = found.head_dim if fields.has("head_dim") else None
    sizes = found.hidden, found.heads, found.key_heads, given, found.vocabulary
    for conflict in [] if report.errors else find_conflicts(*sizes, ids=()):
        key, help = _KEYS[conflict.fields[0]], "give sizes that fit together"
        fields.reject("config-bad-value", key, conflict.message, help)
    report.raise_errors()
    return found


def _layer(fields: Fields, family: str, index: int) -> LayerShape:
    """Layer ``index``; a fault of a key that all layers share is recorded once."""
    window = _window(fields, index)
    inner = fields.integer("intermediate_size", 1, _MOST)
    if family in _DENSE or not _has_experts(fields, index):
        return LayerShape(0, 0, 0, inner, window)
    count = next((k for k in ("num_experts", "num_local_experts") if fields.has(k)), "num_experts")
    experts = fields.integer(count, 1, 4096)
    top = fields.integer("num_experts_per_tok", 1, experts)
    width = inner
    if family in ("qwen2_moe", "qwen3_moe"):
        width = fields.integer("moe_intermediate_size", 1, _MOST)
    shared = fields.integer("shared_expert_intermediate_size", 0, _MOST, 0)
    return LayerShape(experts, top, width, shared, window)


def _has_experts(fields: Fields, index: int) -> bool:
    """Whether layer ``index`` of a model of experts has any."""
    dense = fields.values.get("mlp_only_layers")
    step = fields.integer("decoder_sparse_step", 1, 1024, 1)
    return (index + 1) % step == 0 and not (isinstance(dense, list) and index in dense)


def _window(fields: Fields, index: int) -> int | None:
    """The window of attention of layer ``index``."""
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list):
        if index >= len(kinds) or kinds[index] not in ("sliding_attention", "full_attention"):
            fields.reject_value("layer_types", "a kind of attention for each layer is wanted")
        elif kinds[index] == "full_attention":
            return None
    elif fields.values.get("use_sliding_window") is False:
        return None
    return fields.integer("sliding_window", 1, 1 << 30) if fields.has("sliding_window") else None
