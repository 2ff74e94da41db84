"""The keys of GGUF files: those that every architecture has, and the table of one family.

Source: the key tables of the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZES: dict[str, dict[str, Any]] = {
    "hidden": {"key": "embedding_length"},
    "heads": {"key": "attention.head_count"},
    "kv_heads": {"key": "attention.head_count_kv", "default": "heads"},
    "head_dim": {"key": "attention.key_length", "default": "hidden / heads"},
    "ffn": {"key": "feed_forward_length"},
    "vocab": {"key": "vocab_size"},
    "layers": {"key": "block_count"},
    "max_positions": {"key": "context_length"},
}
_EPS = "attention.layer_norm_rms_epsilon"
_THETA = "rope.freq_base"
# Of tables that hold entries by name, as opposed to one entry.
_NAMED = ("sizes", "own", "numbers", "switches")
_KEYS_OF_ENTRIES = ("key", "pattern")


def gguf_table(prefix: str, table: Mapping[str, Any], rotary: bool) -> dict[str, Any]:
    """The tables of a family, spelled as those for Hugging Face files, with whole keys, from its
    ``table`` [gguf], whose keys lack the ``prefix`` of the architecture and which says only what
    is not the same for all."""
    sizes = {
        name: {**entry, **table.get("sizes", {}).get(name, {})} for name, entry in _SIZES.items()
    }
    keys = {"eps": _EPS, **({"theta": _THETA} if rotary else {}), **table.get("keys", {})}
    found: dict[str, Any] = {**table, "sizes": sizes}
    for name in _NAMED:
        found[name] = {
            param: _prefixed(entry, prefix) for param, entry in found.get(name, {}).items()
        }
    for name in ("windows", "local_rope"):
        if name in found:
            found[name] = _prefixed(found[name], prefix)
    found["refused"] = [_prefixed(entry, prefix) for entry in found.get("refused", [])]
    found["no_effect"] = [prefix + key for key in found.get("no_effect", [])]
    found["keys"] = {name: prefix + key for name, key in keys.items()}
    return found


def _prefixed(entry: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """``entry`` with the ``prefix`` before each key of a file."""
    return {
        name: prefix + value if name in _KEYS_OF_ENTRIES and isinstance(value, str) else value
        for name, value in entry.items()
    }
