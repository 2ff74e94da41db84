"""GGUF headers, sound and hostile."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed, gguf_bytes, gguf_string, gguf_value

from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header

TENSOR = ("t", (4, 8), 0, b"\0" * 128)


def _read(folder: Path, raw: bytes) -> GgufHeader:
    file = folder / "x.gguf"
    file.write_bytes(raw)
    return read_gguf_header(file)


def _start(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def _info(name: str | bytes, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    extents = b"".join(struct.pack("<Q", extent) for extent in dims)
    return (
        gguf_string(name)
        + struct.pack("<I", len(dims))
        + extents
        + struct.pack("<IQ", type_id, offset)
    )


def test_every_kind_of_value(tmp_path: Path) -> None:
    pairs: list[tuple[str, str, Any]] = [
        ("a.u8", "u8", 200),
        ("a.i32", "i32", -5),
        ("a.u64", "u64", 1 << 63),
        ("a.f32", "f32", 0.5),
        ("a.bool", "bool", True),
        ("a.str", "str", "Ġ é"),
        ("a.words", "[str]", ["x", ""]),
        ("a.ids", "[i32]", [3, -1]),
    ]
    header = _read(tmp_path, gguf_bytes(pairs, [TENSOR]))
    ids = header.metadata.pop("a.ids")
    assert isinstance(ids, np.ndarray) and ids.tolist() == [3, -1]
    assert header.metadata == {
        "a.u8": 200,
        "a.i32": -5,
        "a.u64": 1 << 63,
        "a.f32": 0.5,
        "a.bool": True,
        "a.str": "Ġ é",
        "a.words": ["x", ""],
    }
    assert header.tensors["t"].shape == (4, 8)


@pytest.mark.models
def test_a_file_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_custom_alignment(64)
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("u", np.arange(4, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(file)
    assert header.metadata["llama.block_count"] == 3
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert [(t.name, t.shape, t.type_id) for t in header.tensors.values()] == [
        ("t", (2, 3), 0),
        ("u", (4,), 1),
    ]
    place = header.tensors["t"].place
    assert np.frombuffer(file.read_bytes()[place : place + 24], "<f4").tolist() == [*range(6)]


KEY = gguf_string("k")
LIES = {
    "empty": (b"", "0 bytes"),
    "short": (b"GGUF\3\0\0\0", "8 bytes"),
    "magic": (b"GGML" + b"\0" * 40, "start with"),
    "version 1": (_start(0, 0, 1) + b"\0" * 8, "version 1"),
    "version 99": (_start(0, 0, 99) + b"\0" * 8, "version 99"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (_start(1 << 62, 0), "tensors"),
    "pair count": (_start(0, 1 << 63), "metadata pairs"),
    "no pairs": (_start(0, 5), "middle of its header"),
    "key length": (_start(0, 1) + struct.pack("<Q", 1 << 60), "claims"),
    "key bytes": (_start(0, 1) + struct.pack("<Q", 500) + b"a", "middle"),
    "key UTF-8": (_start(0, 1) + gguf_string(b"\xff\xfe") + b"\0" * 8, "not UTF-8"),
    "empty key": (_start(0, 1) + gguf_string("") + b"\0" * 8, "empty"),
    "control characters": (_start(0, 1) + gguf_string("\x1b[31m") + b"\0" * 8, "unprintable"),
    "value type": (_start(0, 1) + KEY + struct.pack("<IQ", 77, 0), "unknown type 77"),
    "string length": (_start(0, 1) + KEY + struct.pack("<IQ", 8, 1 << 62), "claims"),
    "string UTF-8": (_start(0, 1) + KEY + struct.pack("<I", 8) + gguf_string(b"\x80"), "UTF-8"),
    "array length": (_start(0, 1) + KEY + struct.pack("<IIQ", 9, 5, 1 << 61), "middle"),
    "many strings": (_start(0, 1) + KEY + struct.pack("<IIQ", 9, 8, 1 << 50), "strings"),
    "array type": (_start(0, 1) + KEY + struct.pack("<IIQ", 9, 50, 1), "unknown type 50"),
    "nested array": (
        _start(0, 1) + KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
        "lists within lists, 8 deep",
    ),
    "many lists": (_start(0, 1) + KEY + struct.pack("<IIQ", 9, 9, 1 << 40), "strings or lists"),
    "duplicate key": (_start(0, 2) + 2 * (KEY + gguf_value("u32", 1)), "given twice"),
    "no tensors": (_start(9, 0) + b"\0" * 4, "middle"),
    "no dimensions": (_start(1, 0) + _info("t", (), 0, 0), "0 dimensions"),
    "many dimensions": (_start(1, 0) + _info("t", (1,) * 9, 0, 0), "9 dimensions"),
    "lying dimension count": (
        _start(1, 0) + gguf_string("t") + struct.pack("<IQ", 1 << 31, 1),
        "dimensions",
    ),
    "zero extent": (_start(1, 0) + _info("t", (4, 0), 0, 0), "shape [0, 4]"),
    "huge extents": (_start(1, 0) + _info("t", (1 << 63, 1 << 63), 0, 0), "shape"),
    "past the end": (_start(1, 0) + _info("t", (64,), 0, 0) + b"\0" * 99, "ends at byte"),
    "offset past the end": (
        _start(1, 0) + _info("t", (1,), 0, 1 << 63) + b"\0" * 99,
        "ends at byte",
    ),
    "unaligned": (_start(1, 0) + _info("t", (1,), 0, 7) + b"\0" * 99, "aligned"),
    "broken block": (_start(1, 0) + _info("t", (31,), 8, 0) + b"\0" * 99, "whole blocks"),
    "duplicate tensor": (_start(2, 0) + 2 * _info("t", (1,), 0, 0) + b"\0" * 99, "listed twice"),
    "alignment 0": (gguf_bytes([("general.alignment", "u32", 0)], [TENSOR]), "power of two"),
    "alignment 24": (gguf_bytes([("general.alignment", "u32", 24)], [TENSOR]), "power of two"),
    "alignment word": (gguf_bytes([("general.alignment", "str", "x")]), "power of two"),
    "alignment -32": (gguf_bytes([("general.alignment", "i32", -32)]), "power of two"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_named(tmp_path: Path, name: str) -> None:
    raw, words = LIES[name]
    (found,) = diagnosed("gguf-invalid", lambda: _read(tmp_path, raw))
    assert words in found.message
    assert "x.gguf" in found.message


def test_lists_within_lists(tmp_path: Path) -> None:
    """As a later version of a format may have them."""
    numbers = struct.pack("<IQ", 5, 2) + struct.pack("<ii", 7, -8)
    words = struct.pack("<IQ", 8, 1) + gguf_string("x")
    pairs = struct.pack("<IIQ", 9, 9, 2)
    raw = _start(0, 2) + KEY + pairs + numbers + words + gguf_string("b") + gguf_value("u32", 3)
    found = _read(tmp_path, raw).metadata
    lists = found["k"]
    assert isinstance(lists, list) and found["b"] == 3
    assert [list(one) for one in lists] == [[7, -8], ["x"]]


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = gguf_bytes([("a", "u32", 1), ("b", "[str]", ["x", "yy"])], [TENSOR])
    _read(tmp_path, whole)
    for length in range(len(whole)):
        diagnosed("gguf-invalid", lambda end=length: _read(tmp_path, whole[:end]))


def test_tensors_may_overlap(tmp_path: Path) -> None:
    raw = _start(2, 0) + _info("t", (4,), 0, 0) + _info("u", (4,), 0, 0)
    header = _read(tmp_path, raw + b"\0" * (-len(raw) % 32) + b"\0" * 16)
    assert list(header.tensors) == ["t", "u"]


def test_a_million_empty_strings_stay_bounded(tmp_path: Path) -> None:
    count = (1 << 20) + 1
    raw = _start(0, 1) + KEY + struct.pack("<IIQ", 9, 8, count) + b"\0" * (8 * count)
    diagnosed("gguf-invalid", lambda: _read(tmp_path, raw))


def test_a_missing_file(tmp_path: Path) -> None:
    diagnosed("checkpoint-unreadable", lambda: read_gguf_header(tmp_path / "absent.gguf"))
    diagnosed("checkpoint-unreadable", lambda: read_gguf_header(tmp_path))
