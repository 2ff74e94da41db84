"""RoPE settings of a Hugging Face ``config.json``, in the old and the new spelling.

Old: ``rope_theta`` and ``rope_scaling`` (with ``type`` or ``rope_type``). New: ``rope_parameters``
holds both. Source: the RoPE utilities page of the Hugging Face transformers documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.frontend.checkpoints.config import (
    SIZE_LIMITS,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    yarn_size,
)
from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.json_text import JsonText
from meshc.frontend.families import Tables

DEFAULT_THETA = 10000.0
THETA_LIMIT = 1e12
_FACTOR_LIMIT = 1e6

_KEYS = {
    "default": {"factor"},
    "linear": {"factor"},
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    },
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True)
class Rope:
    """Base ``theta`` of the frequencies, and how they are scaled."""

    theta: float
    scaling: RopeScaling | None


def read_rope(top: Fields, text: JsonText, tables: Tables) -> Rope:
    """The RoPE settings of the config in ``text``, as ``tables`` of its family admit them; faults
    go to the diagnostics of ``top``."""
    theta = top.number("rope_theta", 0.0, THETA_LIMIT, tables.theta)
    scaling: RopeScaling | None = None
    if tables.rope_needed and not any(map(top.has, ("rope_scaling", "rope_parameters"))):
        top.require("rope_scaling")
    for key in ("rope_scaling", "rope_parameters"):
        block = _block(top, text, key)
        if block is None:
            continue
        found = _read_scaling(block, tables)
        if key == "rope_parameters" and top.has("rope_scaling") and found != scaling:
            _disagree(top, key, "rope_scaling")
        scaling = found
        if block.has("rope_theta"):
            inner = block.number("rope_theta", 0.0, THETA_LIMIT)
            if top.has("rope_theta") and inner != theta:
                _disagree(top, key, "rope_theta")
            theta = inner
    return Rope(theta, scaling)


def _block(top: Fields, text: JsonText, key: str) -> Fields | None:
    if not top.has(key):
        return None
    value = top.values[key]
    if not isinstance(value, dict):
        top.reject_value(key, "an object or null is wanted")
        return None
    return Fields(
        value, top.name, top.diagnostics, lambda inner: text.span(key, inner) or text.span(key)
    )


def _disagree(top: Fields, key: str, other: str) -> None:
    message = f"'{key}' and '{other}' say different things"
    top.reject("config-bad-value", key, message, f"keep one of '{key}' and '{other}'")


def _read_scaling(block: Fields, tables: Tables) -> RopeScaling | None:
    kind = _rope_type(block, tables.rope_types)
    if kind is None:
        return None
    _refuse_unknown_keys(block, kind)
    if kind == "default":
        return None
    factor = block.number("factor", 0.0, _FACTOR_LIMIT)
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return _yarn(block, factor, tables.rotates_heads)
    low = block.number("low_freq_factor", 0.0, _FACTOR_LIMIT)
    high = block.number("high_freq_factor", 0.0, _FACTOR_LIMIT)
    if high <= low and not block.bad:
        block.reject_value("high_freq_factor", f"it must be above low_freq_factor, {low:g}")
    limit = SIZE_LIMITS["max_positions"]
    original = block.integer("original_max_position_embeddings", 1, limit)
    return Llama3Scaling(factor, low, high, original)


def _yarn(block: Fields, factor: float, rotates_heads: bool) -> YarnScaling:
    """YaRN; null, zero or absent settings have the defaults of transformers. Where whole heads are
    rotated, the size of rotated lanes is that of queries and keys."""

    def setting(key: str, absent: float) -> float:
        given = block.has(key) and block.values[key] != 0
        return block.number(key, 0.0, _FACTOR_LIMIT) if given else absent

    fast, slow = setting("beta_fast", 32.0), setting("beta_slow", 1.0)
    if fast <= slow and not block.bad:
        block.reject_value("beta_fast", f"it must be above beta_slow, {slow:g}")
    size, all_sizes = setting("mscale", 0.0), setting("mscale_all_dim", 0.0)
    limit = SIZE_LIMITS["max_positions"]
    original = block.integer("original_max_position_embeddings", 1, limit)
    truncate = block.boolean("truncate", True)
    if rotates_heads:
        if size or all_sizes:
            key = "mscale" if size else "mscale_all_dim"
            message = f"'{key}' is not supported where whole heads are rotated"
            block.reject("config-unsupported", key, message, "published models have none")
        return YarnScaling(factor, fast, slow, original, 1.0, truncate)
    turned = yarn_size(factor, size if size and all_sizes else 1.0)
    if turned != yarn_size(factor, all_sizes if size else 0.0):
        block.reject(
            "config-unsupported",
            "mscale" if block.has("mscale") else "rope_type",
            "rotary lanes of another size than the others ('mscale' unlike 'mscale_all_dim') are "
            "not supported",
            "published DeepSeek models have the same number for both",
        )
    return YarnScaling(factor, fast, slow, original, all_sizes, truncate)


def _rope_type(block: Fields, types: Sequence[str]) -> str | None:
    new, old = block.values.get("rope_type"), block.values.get("type")
    if new is not None and old is not None and new != old:
        block.reject_value("type", f"'rope_type' is {brief(new)}; keep one of the two")
        return None
    kind = new if new is not None else old
    key = "rope_type" if new is not None else "type"
    if kind is None:
        if not set(block.values) - _COMMON:
            return "default"
        block.require("rope_type")
        return None
    if isinstance(kind, str) and kind in types:
        return kind
    block.reject(
        "config-unsupported",
        key,
        f"RoPE type {brief(kind)} is not supported",
        f"supported: {', '.join(types)}",
    )
    return None


def _refuse_unknown_keys(block: Fields, kind: str) -> None:
    for key in sorted(set(block.values) - _COMMON - _KEYS[kind]):
        if block.has(key):
            block.reject(
                "config-unsupported",
                key,
                f"'{key}' is not understood for RoPE type '{kind}'",
                "every RoPE setting changes the maths, so none is ignored",
            )
    if block.values.get("partial_rotary_factor") not in (None, 1, 1.0):
        block.reject(
            "config-unsupported",
            "partial_rotary_factor",
            "rotating only a part of each head is not supported",
            "meshc rotates whole heads (partial_rotary_factor 1)",
        )
