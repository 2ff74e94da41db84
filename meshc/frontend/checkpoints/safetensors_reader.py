"""Weights in safetensors files, single or sharded, as float32.

The format is eight bytes of length, a JSON header and raw little-endian data (safetensors README,
"Format"). It is read here directly: the ``safetensors`` package has no bfloat16 in NumPy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeGuard

import numpy as np

from meshc.frontend.checkpoints.bounded_files import open_regular
from meshc.frontend.checkpoints.json_text import parse_json_object, read_json_object
from meshc.frontend.checkpoints.tensor_source import (
    FLOATS,
    Encoded,
    Part,
    Rows,
    StoredTensor,
    map_elements,
    read_bytes,
    read_rows,
)
from meshc.ir.codes import CodeFormat
from meshc.ir.stored import E4M3
from meshc.support.diagnostics import fail

INDEX_NAME = "model.safetensors.index.json"

# 130 bytes a tensor: room for 30,000, ten times what the supported families have.
_MAX_HEADER_BYTES = 4 << 20
_MAX_DIMS = 8
_MAX_SHARDS = 1024
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")


def _from_f32(rows: np.ndarray) -> np.ndarray:
    return rows.view("<f4")


def _from_f16(rows: np.ndarray) -> np.ndarray:
    return rows.view("<f2").astype(np.float32)


def _from_bf16(rows: np.ndarray) -> np.ndarray:
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


_CONVERT: dict[str, tuple[int, Rows]] = {
    "F32": (4, _from_f32),
    "F16": (2, _from_f16),
    "BF16": (2, _from_bf16),
}


_MAPPED = FLOATS | {"F8_E4M3": E4M3}

# Of quantised weights, whose meaning needs more than their elements.
_CODES: dict[str, str] = {"I32": "<i4", "F8_E4M3": "u1", "U8": "u1"}
_ITEM_BYTES = {name: size for name, (size, _) in _CONVERT.items()} | {
    name: np.dtype(kind).itemsize for name, kind in _CODES.items()
}


@dataclass(frozen=True)
class _Entry:
    """Where a tensor's bytes lie in which file."""

    path: Path
    stored: StoredTensor
    offset: int


class SafetensorsWeights:
    """The tensors of one or several safetensors files."""

    def __init__(self, label: str, entries: Mapping[str, _Entry]) -> None:
        self.label = label
        self._entries = entries

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor of the files."""
        return {name: entry.stored for name, entry in self._entries.items()}

    def renamed(self, names: Mapping[str, str]) -> SafetensorsWeights:
        """The tensors that ``names`` has, each by the name that it gives. Errors:
        ``safetensors-invalid`` where it gives one twice."""
        found: dict[str, _Entry] = {}
        for old, new in names.items():
            if new in found:
                _invalid(self._entries[old].path, f"two of its tensors are what '{new}' stands for")
            found[new] = self._entries[old]
        return SafetensorsWeights(self.label, found)

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32. Errors: ``safetensors-invalid``."""
        entry = self._entries[name]
        item_bytes, convert = _CONVERT[entry.stored.dtype]
        shape = entry.stored.shape or (1,)
        row_bytes = shape[-1] * item_bytes
        found = read_rows(entry.path, entry.offset, shape, row_bytes, convert, part)
        if found is None:
            _invalid(entry.path, f"it ends inside tensor '{name}'")
        return found if part else found.reshape(entry.stored.shape)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(sorted({entry.path for entry in self._entries.values()}))

    def mapped(self, name: str) -> np.ndarray | None:
        """The tensor ``name``, mapped into memory. Errors: ``safetensors-invalid``."""
        entry = self._entries[name]
        if entry.stored.dtype not in _MAPPED or not _product(entry.stored.shape):
            return None
        kind = _MAPPED[entry.stored.dtype]
        found = map_elements(entry.path, entry.offset, entry.stored.shape, kind)
        if found is None:
            _invalid(entry.path, f"it ends inside tensor '{name}'")
        return found

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """None of these tensors has scales. Raises KeyError."""
        raise KeyError(name)

    def read_codes(self, name: str) -> np.ndarray:
        """The tensor ``name`` of type I32, F8_E4M3 or U8 as its file holds it: int32 or uint8.

        Errors: ``safetensors-invalid``.
        """
        entry = self._entries[name]
        kind = np.dtype(_CODES[entry.stored.dtype])
        count = _product(entry.stored.shape)
        raw = read_bytes(entry.path, entry.offset, count * kind.itemsize)
        if raw is None:
            _invalid(entry.path, f"it ends inside tensor '{name}'")
        return raw.view(kind).reshape(entry.stored.shape)


def read_safetensors(path: Path) -> SafetensorsWeights:
    """The single file ``path``. Errors: ``checkpoint-unreadable``, ``safetensors-invalid``."""
    return SafetensorsWeights(str(path), _entries(path))


def read_sharded(index: Path) -> SafetensorsWeights:
    """All tensors of the shards that the index file ``index`` names, which lie in its directory,
    those that it does not name too, as Hugging Face transformers reads them.

    Errors: as `read_safetensors`, ``json-invalid``.
    """
    text = read_json_object(index, _MAX_HEADER_BYTES, "safetensors index")
    table = text.value.get("weight_map")
    if not isinstance(table, dict):
        _invalid(index, "it has no object 'weight_map'")
    shards = {name: _shard_path(index, shard) for name, shard in table.items()}
    files = sorted(set(shards.values()))
    if len(files) > _MAX_SHARDS:
        _invalid(index, f"it names {len(files)} shards")
    missing = [file.name for file in files if not os.path.isfile(file)]
    if missing:
        _invalid(index, f"these shards are missing: {', '.join(missing[:8])}")
    content = {file: _entries(file) for file in files}
    entries = {}
    for name, file in shards.items():
        if name not in content[file]:
            _invalid(index, f"shard '{file.name}' does not hold tensor '{name}'")
        entries[name] = content[file][name]
    for found in content.values():
        for name in (name for name in found if name not in shards):
            if name in entries:
                _invalid(index, f"two shards hold tensor '{name}', and it names neither")
            entries[name] = found[name]
    return SafetensorsWeights(str(index), entries)


def _shard_path(index: Path, shard: object) -> Path:
    """A shard is a plain file name: a path could lead anywhere on the machine."""
    if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
        shown = shard[:60] if isinstance(shard, str) else "not a string"
        _invalid(index, f"'{shown}' is not a plain shard file name")
    return index.parent / shard


def _invalid(path: Path, reason: str) -> NoReturn:
    fail(
        "safetensors-invalid",
        f"'{path}' is not a valid safetensors file: {reason}",
        help="the file is damaged or incomplete; get it again",
    )


def _entries(path: Path) -> dict[str, _Entry]:
    stream, size = open_regular(path, "weights file")
    with stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            _invalid(path, f"its header claims {length} bytes of a file of {size}")
        if length > _MAX_HEADER_BYTES:
            _invalid(path, f"its header is longer than {_MAX_HEADER_BYTES} bytes")
        text = parse_json_object(stream.read(length), str(path))
    start = 8 + length
    return {
        name: _entry(path, name, facts, start, size)
        for name, facts in text.value.items()
        if name != "__metadata__"
    }


def _entry(path: Path, name: str, facts: object, start: int, size: int) -> _Entry:
    fields = facts if isinstance(facts, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    begin, end = _offsets(fields.get("data_offsets"))
    if not isinstance(dtype, str) or not _is_shape(shape) or begin < 0 or end < begin:
        _invalid(path, f"the entry of tensor '{name[:100]}' is malformed")
    if start + end > size:
        _invalid(path, f"tensor '{name[:100]}' ends at byte {start + end} of {size}")
    if dtype in _ITEM_BYTES and _product(shape) * _ITEM_BYTES[dtype] != end - begin:
        _invalid(path, f"tensor '{name[:100]}' has {end - begin} bytes for shape {shape}")
    stored = StoredTensor(tuple(shape), dtype[:20], dtype in _CONVERT)
    return _Entry(path, stored, start + begin)


def _offsets(value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value):
        return value[0], value[1]
    return -1, -1


def _is_shape(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMS
        and all(type(extent) is int and 0 <= extent < 1 << 48 for extent in value)
    )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
