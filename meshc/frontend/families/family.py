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
from meshc.frontend.families.tables import (
    Dense,
    Experts,
    Flag,
    GgufTables,
    Keys,
    LocalRope,
    Number,
    Refusal,
    Rotary,
    Size,
    SkippedRope,
    StoredParam,
    Tables,
    Windows,
    Word,
)
from meshc.support.plugins import Kind

_FOLDER = resources.files("meshc.frontend.families")
_MODEL, _CONFIG, _TENSORS = "model.mesh", "config.toml", "tensors.toml"
_GGUF_OWN = {field.name for field in fields(GgufTables)} - {"architecture", "tables"}


@dataclass(frozen=True)
class Family:
    """One family.

    ``architectures`` maps classes of transformers to a ``model_type``, ``tables`` has what a config
    of each such type says, ``gguf`` what a GGUF file says, None where none is read. Some files
    leave out the ``prefix`` of all names of tensors. ``params`` are the stored forms of the model's
    params, in the order of use.
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

    Raises TypeError or KeyError for a table of a shipped family that is not spelled as
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
    tables = {kind: _tables(config, variants.get(kind, {})) for kind in kinds}
    params = {
        param: StoredParam(**{**entry, **_axes(entry)}) for param, entry in _tensors(folder).items()
    }
    of_gguf = _gguf_tables(name, gguf, config["rope_types"]) if gguf is not None else None
    return Family(name, architectures, tables, of_gguf, prefix, params)


def _tensors(folder: Traversable) -> dict[str, dict[str, Any]]:
    """The entries of tensors.toml: those of the family that it is ``like``, ``without`` some, and
    its own, which stand for others of the same name."""
    own = _table(folder, _TENSORS)
    like, without = own.pop("like", ""), own.pop("without", [])
    found = _tensors(_folder_of(like)) if like else {}
    for param in without:
        del found[param]
    return found | own


def _axes(entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(entry[key]) for key in ("stored", "gguf_stored") if key in entry}


def _gguf_tables(name: str, table: dict[str, Any], rope_types: list[str]) -> GgufTables:
    """What GGUF files of the family ``name`` say, of the ``table`` [gguf] of its config.toml."""
    architecture, rope_types = table.pop("architecture", name), table.pop("rope_types", rope_types)
    own = {key: table.pop(key) for key in sorted(_GGUF_OWN) if key in table}
    keys = gguf_table(f"{architecture}.", table, bool(rope_types))
    return GgufTables(architecture, _tables({"rope_types": rope_types, **keys}, {}), **own)


def _table(folder: Traversable, file: str) -> dict[str, Any]:
    return tomllib.loads((folder / file).read_text(encoding="utf-8"))


def _tables(config: Mapping[str, Any], variant: Mapping[str, Any]) -> Tables:
    """The tables of one model type: those of the family, with what this type has otherwise."""

    def merged(key: str) -> dict[str, Any]:
        return {**config.get(key, {}), **variant.get(key, {})}

    known = {"sizes", "own", "flags", "switches", "numbers", "refused", "rope_types"}
    known |= {"experts", "dense"}
    rest = {key: value for key, value in (*config.items(), *variant.items()) if key not in known}
    return Tables(
        rope_types=tuple(config["rope_types"]),
        sizes={name: Size(**entry) for name, entry in merged("sizes").items()},
        own={name: Size(parameter=name, **entry) for name, entry in merged("own").items()},
        flags={name: Flag(**entry) for name, entry in merged("flags").items()},
        switches={
            name: Flag(parameter=name, **entry) for name, entry in merged("switches").items()
        },
        numbers={name: Number(**entry) for name, entry in merged("numbers").items()},
        refused=tuple(
            Refusal(**entry) for table in (config, variant) for entry in table.get("refused", [])
        ),
        lanes=tuple(rest.pop("lanes", ())),
        named=Keys(**rest.pop("keys", {})),
        rotary=Rotary(**rest.pop("rotary")) if "rotary" in rest else None,
        local_rope=LocalRope(**rest.pop("local_rope")) if "local_rope" in rest else None,
        skipped_rope=SkippedRope(**rest.pop("skipped_rope")) if "skipped_rope" in rest else None,
        windows=Windows(**rest.pop("windows")) if "windows" in rest else None,
        experts=_experts(merged("experts")),
        dense=_dense(merged("dense")),
        no_effect=frozenset(rest.pop("no_effect", ())),
        **rest,
    )


def _dense(table: Mapping[str, Any]) -> Dense | None:
    """The table of layers without experts, if there is one."""
    return Dense(**{**table, "width": Size(**table["width"])}) if table else None


def _experts(table: Mapping[str, Any]) -> Experts | None:
    """The table of layers with experts, if there is one."""
    if not table:
        return None
    kinds: dict[str, type] = {"own": Size, "numbers": Number, "switches": Flag, "words": Word}
    entries = {
        kind: {name: cls(**entry) for name, entry in table.get(kind, {}).items()}
        for kind, cls in kinds.items()
    }
    return Experts(**{**table, **entries})


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
