"""RoPE settings of a Hugging Face ``config.json``, in the old and the new spelling.

Old: ``rope_theta`` and ``rope_scaling`` (with ``type`` or ``rope_type``). New: ``rope_parameters``
holds both. Source: the RoPE utilities page of the Hugging Face transformers documentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.json_text import JsonText
from meshc.frontend.checkpoints.model_config import (
    SIZE_LIMITS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    yarn_size,
)
from meshc.frontend.families import SkippedRope, Tables

DEFAULT_THETA = 10000.0
THETA_LIMIT = 1e12
_FACTOR_LIMIT = 1e6

_KEYS = {
    "default": {"factor"},
    "linear": {"factor"},
    "dynamic": {"factor"},
    "longrope": {
        "factor",
        "short_factor",
        "long_factor",
        "attention_factor",
        "original_max_position_embeddings",
    },
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "factor",
        "attention_factor",
        "finetuned",  # a note on the checkpoint
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    },
}
_SHARE = "partial_rotary_factor"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_FORMER = {"su": "longrope"}
"""Names that old files have for a type."""
_CONTEXT = "original_max_position_embeddings"
_MOST_FACTORS = SIZE_LIMITS["head_dim"] // 2
_COMMON = {"rope_type", "type", "rope_theta", _SHARE}


@dataclass(frozen=True)
class Rope:
    """Base ``theta`` of the frequencies, how they are scaled, the share of a head's lanes that
    turns, and the base of layers with windows, where these have one of their own."""

    theta: float
    scaling: RopeScaling | None
    share: float = 1.0
    local: float | None = None


def read_rope(top: Fields, text: JsonText, tables: Tables) -> Rope:
    """The RoPE settings of the config in ``text``, as ``tables`` of its family admit them; faults
    go to the diagnostics of ``top``."""
    key_of_theta, rotary = tables.named.theta, tables.rotary
    if not tables.rope_types:
        for key in filter(top.has, (key_of_theta, "rope_scaling", "rope_parameters")):
            message = f"'{key}' is a setting of rotary positions, which these models do not have"
            top.reject("config-unsupported", key, message, f"remove '{key}'")
        return Rope(DEFAULT_THETA, None)
    theta = top.number(key_of_theta, 0.0, THETA_LIMIT, tables.theta)
    share = top.number(rotary.key, 0.0, 1.0, rotary.default) if rotary else 1.0
    scaling: RopeScaling | None = None
    if tables.rope_needed and not any(map(top.has, ("rope_scaling", "rope_parameters"))):
        top.require("rope_scaling")
    local = _local(top, text, tables)
    for key in ("rope_scaling", "rope_parameters"):
        block = _block(top, text, key)
        if block is None:
            continue
        if tables.local_rope and _FULL in block.values:
            block = _inner(block, text, key, _FULL)
        found = _read_scaling(block, top, tables)
        if key == "rope_parameters" and (older := _block(top, text, "rope_scaling")) is not None:
            # transformers reads the older object alone, where both are there.
            beside = {"rope_theta": key_of_theta, _SHARE: rotary.key if rotary else _SHARE}
            if found != scaling or any(
                block.has(name)
                and block.values[name] != older.values.get(name, top.values.get(other))
                for name, other in beside.items()
            ):
                _disagree(top, key, "rope_scaling")
        scaling = found
        if block.has("rope_theta"):
            inner = block.number("rope_theta", 0.0, THETA_LIMIT)
            if top.has(key_of_theta) and inner != theta:
                _disagree(top, key, key_of_theta)
            theta = inner
        if rotary and block.has(_SHARE):
            inner = block.number(_SHARE, 0.0, 1.0)
            if top.has(rotary.key) and inner != share:
                _disagree(top, key, rotary.key)
            share = inner
    return Rope(theta, scaling, share, local)


def read_skipped(top: Fields, keys: SkippedRope, layers: int) -> int:
    """Every how many-th of ``layers`` turns nothing; 0 where all turn."""
    if not top.has(keys.list):
        return top.integer(keys.key, 1, SIZE_LIMITS["layers"], keys.default)
    turns = top.values[keys.list]
    if not isinstance(turns, list) or len(turns) != layers or any(n not in (0, 1) for n in turns):
        top.reject_value(keys.list, "1 is wanted for each layer that turns, 0 for each other")
        return 0
    skip = turns.index(0) + 1 if 0 in turns else 0
    if skip and turns != [int(n % skip != 0) for n in range(1, layers + 1)]:
        message = "other layers without RoPE than every so many-th are not supported"
        shown = "meshc computes 0 in every n-th place, the n-th one first"
        top.reject("config-unsupported", keys.list, message, shown)
    return skip


def _local(top: Fields, text: JsonText, tables: Tables) -> float | None:
    """The base of RoPE in layers with windows, which turn without scaling."""
    if tables.local_rope is None:
        return None
    keys = tables.local_rope
    found = top.number(keys.key, 0.0, THETA_LIMIT, keys.default)
    block = _block(top, text, "rope_parameters")
    if block is None or _SLIDING not in block.values:
        return found
    inner = _inner(block, text, "rope_parameters", _SLIDING)
    if _rope_type(inner, ("default",)) == "default":
        _refuse_unknown_keys(inner, "default", False)
    own = inner.number("rope_theta", 0.0, THETA_LIMIT, found)
    if top.has(keys.key) and own != found:
        _disagree(top, "rope_parameters", keys.key)
    return own


def _inner(block: Fields, text: JsonText, key: str, kind: str) -> Fields:
    """What ``block`` says of one kind of layers."""
    value = block.values[kind]
    if not isinstance(value, dict):
        block.reject_value(kind, "an object is wanted")
        value = {}
    return Fields(value, block.name, block.diagnostics, lambda _: text.span(key, kind))


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


def _read_scaling(block: Fields, top: Fields, tables: Tables) -> RopeScaling | None:
    kind = _rope_type(block, tables.rope_types)
    if kind is None:
        return None
    _refuse_unknown_keys(block, kind, tables.rotary is not None)
    if kind == "default":
        return None
    if kind == "longrope":
        return _long(block, top, tables)
    if kind == "yarn":
        return _yarn(block, top, tables)
    factor = block.number("factor", 0.0, _FACTOR_LIMIT)
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "dynamic":
        return DynamicScaling(factor, _positions(top, tables))
    low = block.number("low_freq_factor", 0.0, _FACTOR_LIMIT)
    high = block.number("high_freq_factor", 0.0, _FACTOR_LIMIT)
    if high <= low and not block.bad:
        block.reject_value("high_freq_factor", f"it must be above low_freq_factor, {low:g}")
    return Llama3Scaling(factor, low, high, _original(block, top, tables))


def _positions(top: Fields, tables: Tables) -> int:
    """The positions of the model; that the number is one is said where sizes are read."""
    size = tables.sizes["max_positions"]
    found = top.values.get(size.key, size.default)
    return found if type(found) is int and found > 0 else 1


def _long(block: Fields, top: Fields, tables: Tables) -> LongScaling:
    """LongRoPE. Without an attention factor, scores are scaled by how far the original context is
    exceeded."""
    original = _original(block, top, tables)
    usual = max(_positions(top, tables) / original, 1.0)
    factor = block.number("factor", 0.0, _FACTOR_LIMIT, usual)
    size = 1.0
    if factor > 1.0 and original > 1:
        size = math.sqrt(1.0 + math.log(factor) / math.log(original))
    size = block.number("attention_factor", 0.0, _FACTOR_LIMIT, size)
    short, long = (_factors(block, key) for key in ("short_factor", "long_factor"))
    return LongScaling(short, long, original, size * size)


def _factors(block: Fields, key: str) -> tuple[float, ...]:
    """The numbers above 0 in the list at ``key``."""
    if not block.require(key):
        return ()
    given = block.values[key]
    numbers = given if isinstance(given, list) and len(given) <= _MOST_FACTORS else []
    found = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
    if found and len(found) == len(numbers) and all(0 < n <= _FACTOR_LIMIT for n in found):
        return tuple(map(float, found))
    block.reject_value(key, "a list of numbers above 0 is wanted")
    return ()


def _yarn(block: Fields, top: Fields, tables: Tables) -> YarnScaling:
    """YaRN; null, zero or absent settings have the defaults of transformers. Where whole heads are
    rotated, the size of rotated lanes is that of queries and keys."""

    def setting(key: str, absent: float) -> float:
        given = block.has(key) and block.values[key] != 0
        return block.number(key, 0.0, _FACTOR_LIMIT) if given else absent

    original = _original(block, top, tables)
    usual = _positions(top, tables) / original if "factor" in block.values else None
    factor = block.number("factor", 0.0, _FACTOR_LIMIT, usual)
    fast, slow = setting("beta_fast", 32.0), setting("beta_slow", 1.0)
    if fast <= slow and not block.bad:
        block.reject_value("beta_fast", f"it must be above beta_slow, {slow:g}")
    size, all_sizes = setting("mscale", 0.0), setting("mscale_all_dim", 0.0)
    truncate = block.boolean("truncate", True)
    turned = yarn_size(factor, 1.0)
    if size and all_sizes:
        turned = yarn_size(factor, size) / yarn_size(factor, all_sizes)
    turned = block.number("attention_factor", 0.0, _FACTOR_LIMIT, turned)
    if tables.rotates_heads:
        return YarnScaling(factor, fast, slow, original, turned**2, truncate)
    if turned != 1.0:
        said = next((key for key in ("attention_factor", "mscale") if block.has(key)), "rope_type")
        block.reject(
            "config-unsupported",
            said,
            "rotary lanes of another size than the others ('attention_factor', or 'mscale' unlike "
            "'mscale_all_dim') are not supported",
            "published DeepSeek models have the same number for both",
        )
    scale = yarn_size(factor, all_sizes) ** 2
    return YarnScaling(factor, fast, slow, original, scale, truncate)


def _original(block: Fields, top: Fields, tables: Tables) -> int:
    """The context that a model had before it was stretched. Some families have it beside the
    object; in others it is the context where the object does not say it."""
    limit, beside = SIZE_LIMITS["max_positions"], tables.context_beside
    inside = beside and not block.has(_CONTEXT) and top.has(_CONTEXT)
    absent = None if beside else _positions(top, tables)
    found = (top if inside else block).integer(_CONTEXT, 1, limit, absent)
    if top.has(_CONTEXT) and top.integer(_CONTEXT, 1, limit) != found:
        message = f"in the object with the scaling of RoPE it is {found}; keep one of the two"
        top.reject_value(_CONTEXT, message)
    return found


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
    if isinstance(kind, str) and _FORMER.get(kind, kind) in types:
        return _FORMER.get(kind, kind)
    block.reject(
        "config-unsupported",
        key,
        f"RoPE type {brief(kind)} is not supported",
        f"supported: {', '.join(types)}",
    )
    return None


def _refuse_unknown_keys(block: Fields, kind: str, turns_parts: bool) -> None:
    for key in sorted(set(block.values) - _COMMON - _KEYS[kind]):
        if block.has(key):
            block.reject(
                "config-unsupported",
                key,
                f"'{key}' is not understood for RoPE type '{kind}'",
                "every RoPE setting changes the maths, so none is ignored",
            )
    if not turns_parts and block.values.get(_SHARE) not in (None, 1, 1.0):
        block.reject(
            "config-unsupported",
            _SHARE,
            "rotating only a part of each head is not supported",
            "meshc rotates whole heads of this family (partial_rotary_factor 1)",
        )
