"""The text half of a model that also sees pictures, as a model of its own.

Its ``config.json`` has the keys of the half in ``text_config``, or, as older files of Qwen2-VL,
among its own; tensors of the half have a prefix. Positions of text alone turn all sections of
multimodal RoPE alike, so that it is plain RoPE (Qwen2-VL, arXiv 2409.12191, section 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshc.frontend.checkpoints.json_text import JsonText
from meshc.frontend.checkpoints.safetensors_reader import SafetensorsWeights
from meshc.support.declared_values import toml_of
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Span

_HALF, _TIED = "text_config", "tie_word_embeddings"
_OF_PICTURES = {
    *("vision_config", "image_token_index", "image_token_id", "boi_token_index", "boi_token_id"),
    *("eoi_token_index", "eoi_token_id", "mm_tokens_per_image", "video_token_id"),
    *("vision_start_token_id", "vision_end_token_id", "vision_token_id"),
}
_ROPE = ("rope_scaling", "rope_parameters")
_TEXT_NAMES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_PICTURE_NAMES = tuple(
    f"{prefix}{part}."
    for prefix in ("", "model.")
    for part in ("visual", "vision_tower", "multi_modal_projector")
)


@dataclass(frozen=True)
class _HalfOfText(JsonText):
    """Keys of the half lie in the object at ``text_config``, where that is there."""

    def span(self, *path: str) -> Span | None:
        return super().span(_HALF, *path) or super().span(*path)


def text_half(text: JsonText, diagnostics: Diagnostics) -> JsonText:
    """The config of the text half, with a remark, where ``text`` is one of text and pictures; else
    ``text`` itself."""
    whole = text.value
    kind = whole.get("model_type")
    halves = toml_of("meshc.frontend.checkpoints.hf", "text_halves.toml")
    table = halves.get(kind) if isinstance(kind, str) else None
    half = whole.get(_HALF, {})
    if table is None or not isinstance(half, dict):
        return text
    if whole.get("architectures") not in (None, [table["architecture"]]):
        return text
    common = {key: value for key, value in whole.items() if key not in _OF_PICTURES | {_HALF}}
    value: dict[str, Any] = {**half, **common, "model_type": table["text"]}
    value.pop("architectures", None)
    tied = whole.get(_TIED, table["tied"])
    value[_TIED] = tied if table["tied"] else tied or half.get(_TIED, False)
    for key in _ROPE:
        if isinstance(value.get(key), dict):
            value[key] = _plain(value[key])
    message = f"pictures are not read: of a '{kind}' meshc computes the half that is text"
    diagnostics.remark("config-unused-key", message, text.span("vision_config"))
    return _HalfOfText(text.source, value)


def _plain(rope: Mapping[str, object]) -> dict[str, object]:
    """RoPE of text, of which all sections have one position."""
    found = {key: value for key, value in rope.items() if key != "mrope_section"}
    for key in ("type", "rope_type"):
        if found.get(key) == "mrope":
            found[key] = "default"
    return found


def of_text_half(files: SafetensorsWeights) -> SafetensorsWeights:
    """``files`` without their tensors of pictures, those of text by the names of the half."""
    return files.renamed(
        {name: _named(name) for name in files.tensors if not name.startswith(_PICTURE_NAMES)}
    )


def _named(name: str) -> str:
    prefix = next((prefix for prefix in _TEXT_NAMES if name.startswith(prefix)), "")
    return _TEXT_NAMES.get(prefix, "") + name.removeprefix(prefix)
