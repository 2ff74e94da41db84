"""Reading the folder of a family."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from meshc.frontend.families.gguf_keys import gguf_table
from meshc.frontend.families.tables import GgufTables, StoredParam, Tables
from meshc.support.declared_values import declared
from meshc.support.plugins import Kind

_FOLDER = resources.files("meshc.frontend.families")
_MODEL, _CONFIG, _TENSORS = "model.mesh", "config.toml", "tensors.toml"
_MERGED = ("sizes", "own", "flags", "switches", "numbers", "experts", "dense")
_GGUF_OWN = {field.name for field in fields(GgufTables)} - {"architecture", "tables"}
_SIZES: dict[str, dict[str, Any]] = {
    "hidden": {"parameter": "E", "key": "hidden_size"},
    "heads": {"parameter": "H", "key": "num_attention_heads"},
    "kv_heads": {"parameter": "G", "key": "num_key_value_heads"},
    "head_dim": {"parameter": "D", "key": "head_dim", "default": "hidden / heads"},
    "ffn": {"parameter": "F", "key": "intermediate_size"},
    "vocab": {"parameter": "V", "key": "vocab_size"},
    "layers": {"parameter": "layers", "key": "num_hidden_layers"},
    "max_positions": {"key": "max_position_embeddings"},
}
"""Those of most files: of entries that ``config.toml`` leaves out, or that say no ``key``."""


@dataclass(frozen=True)
class Family:
    """One family.

    ``architectures`` maps classes of transformers to a ``model_type``, ``tables`` has what a config
    of each such type says, ``gguf`` what a GGUF file says, None where none is read. Some files
    leave out the ``prefix`` of all names of tensors. ``params`` are the stored forms of the model's
    params.
    """

    name: str
    architectures: Mapping[str, str]
    tables: Mapping[str, Tables]
    gguf: GgufTables | None
    prefix: str
    params: Mapping[str, StoredParam]


def family_names() -> tuple[str, ...]:
    """The families that are shipped, sorted."""
    return tuple(sorted(e.name for e in _FOLDER.iterdir() if (e / _MODEL).is_file()))


def brought_families() -> tuple[str, ...]:
    """Other families, of installed packages. Raises ``bad-plugin``."""
    own = family_names()
    return tuple(name for name in KIND.names() if name not in own)


def is_family(name: str) -> bool:
    """Whether ``name`` is a family. Raises ``bad-plugin``."""
    return name in family_names() or name in brought_families()


def model_text(name: str) -> str:
    """The text of the ``model.mesh`` of the family ``name``."""
    return (_folder_of(name) / _MODEL).read_text(encoding="utf-8")


@cache
def family_named(name: str) -> Family:
    """The family ``name``, which `is_family`.

    Raises ValueError or KeyError for a table of a shipped family that is not spelled as
    ``docs/families.md`` says, since these files are part of the program, and ``bad-plugin`` for one
    of an installed package.
    """
    return _family(name, _folder_of(name))


def _folder_of(name: str) -> Traversable:
    own: Traversable = _FOLDER / name
    found: Traversable | None = own if (own / _MODEL).is_file() else KIND.named(name)
    if found is None:
        raise KeyError(f"there is no family '{name}'")
    return found


def _family(name: str, folder: Traversable) -> Family:
    config = _table(folder, _CONFIG)
    architectures = config.pop("architectures")
    gguf, prefix = config.pop("gguf", None), config.pop("prefix", "")
    kinds = sorted(set(architectures.values()))
    variants = {kind: config.pop(kind, {}) for kind in kinds}
    # The lanes of a head are the width of one in the place of a key.
    sizes = {name: _SIZES[name] for name in _SIZES if name != "head_dim" or "lanes" not in config}
    tables = {kind: _tables(config, variants[kind], _CONFIG, sizes) for kind in kinds}
    params = declared(dict[str, StoredParam], _tensors(folder), _TENSORS)
    of_gguf = _gguf_tables(name, gguf, config["rope_types"]) if gguf is not None else None
    return Family(name, architectures, tables, of_gguf, prefix, params)


def _tensors(folder: Traversable) -> dict[str, dict[str, Any]]:
    """The entries of tensors.toml: those of the family that it is ``like``, ``without`` some, its
    own, which stand for others of the same name, and those that are the ``same`` as another."""
    own = _table(folder, _TENSORS)
    like, without, same = own.pop("like", ""), own.pop("without", []), own.pop("same", {})
    found = _tensors(_folder_of(like)) if like else {}
    for param in without:
        del found[param]
    found |= own
    return found | {param: found[other] for param, other in same.items()}


def _gguf_tables(name: str, table: dict[str, Any], rope_types: list[str]) -> GgufTables:
    """What GGUF files of the family ``name`` say, of the ``table`` [gguf] of its config.toml."""
    architecture, rope_types = table.pop("architecture", name), table.pop("rope_types", rope_types)
    own = {key: table.pop(key) for key in sorted(_GGUF_OWN) if key in table}
    keys = gguf_table(f"{architecture}.", table, bool(rope_types))
    tables = _tables({"rope_types": rope_types, **keys}, {}, f"{_CONFIG}, gguf", {})
    return declared(GgufTables, {"architecture": architecture, "tables": tables, **own}, _CONFIG)


def _table(folder: Traversable, file: str) -> dict[str, Any]:
    return tomllib.loads((folder / file).read_text(encoding="utf-8"))


def _tables(
    config: Mapping[str, Any],
    variant: Mapping[str, Any],
    place: str,
    usual: Mapping[str, Mapping[str, Any]],
) -> Tables:
    """The tables of one model type: those of the family, with what this type has otherwise, and
    ``usual`` sizes where neither says a key."""
    found = {**config, **variant}
    for name in _MERGED:
        found[name] = {**config.get(name, {}), **variant.get(name, {})}
    found["sizes"] = {**usual} | {
        name: size if "key" in size else {**usual.get(name, {}), **size}
        for name, size in found["sizes"].items()
    }
    for name in ("own", "switches"):
        found[name] = {key: {"parameter": key, **entry} for key, entry in found[name].items()}
    for name in ("experts", "dense"):
        found[name] = found[name] or None
    found["refused"] = [*config.get("refused", []), *variant.get("refused", [])]
    found["named"] = found.pop("keys", {})
    return declared(Tables, found, place)


def _fault(name: str, found: Any) -> str:
    """What is wrong with what is offered as the folder of the family ``name``, or an empty text."""
    if not isinstance(found, Traversable):
        return "is no folder, such as one of importlib.resources.files"
    for file in (_MODEL, _CONFIG, _TENSORS):
        if not (found / file).is_file():
            return f"has no {file}"
    _family(name, found)
    return ""


KIND = Kind("meshc.families", "family", "docs/families.md", _fault)
"""Families of installed packages: their folders."""
