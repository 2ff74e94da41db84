"""safetensors files, sound and hostile."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed, safetensors_bytes

from meshc.frontend.checkpoints.safetensors_reader import (
    INDEX_NAME,
    SafetensorsWeights,
    read_safetensors,
    read_sharded,
)

VALUES = np.array([[0.5, -1.25, 3.0], [1e-3, 65504.0, -0.0]], dtype=np.float32)


def _read(folder: Path, raw: bytes) -> SafetensorsWeights:
    file = folder / "x.safetensors"
    file.write_bytes(raw)
    return read_safetensors(file)


def _with_header(header: bytes, body: bytes = b"\0" * 64) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("F32", 0.0), ("F16", 2.0**-11), ("BF16", 2.0**-7)]
)
def test_number_formats(tmp_path: Path, dtype: str, tolerance: float) -> None:
    source = _read(tmp_path, safetensors_bytes({"a": VALUES}, dtype))
    found = source.read("a")
    assert found.dtype == np.float32 and found.shape == (2, 3)
    np.testing.assert_allclose(found, VALUES, rtol=tolerance, atol=1e-6 if tolerance else 0)


@pytest.mark.models
def test_a_file_of_the_safetensors_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    file = tmp_path / "x.safetensors"
    tensors = {"b": VALUES, "a": VALUES.astype(np.float16)[1:], "s": np.float32(4.0)[None]}
    package.save_file(tensors, file, metadata={"format": "pt"})
    source = read_safetensors(file)
    assert sorted(source.tensors) == ["a", "b", "s"]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(source.read(name), tensor.astype(np.float32))


@pytest.mark.models
def test_the_package_reads_what_the_tests_write(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    (tensors,) = package.load(safetensors_bytes({"a": VALUES})).values()
    np.testing.assert_array_equal(tensors, VALUES)


def test_rows_beyond_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshc.frontend.checkpoints.tensor_source._CHUNK_BYTES", 20)
    tensor = np.arange(21, dtype=np.float32).reshape(7, 3)
    source = _read(tmp_path, safetensors_bytes({"a": tensor}))
    np.testing.assert_array_equal(source.read("a"), tensor)


def test_a_file_cut_after_its_header_was_read(tmp_path: Path) -> None:
    raw = safetensors_bytes({"a": VALUES})
    source = _read(tmp_path, raw)
    (tmp_path / "x.safetensors").write_bytes(raw[:-1])
    diagnosed("safetensors-invalid", lambda: source.read("a"))


def _entry(**changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}
    return _with_header(json.dumps({"a": {k: v for k, v in entry.items() if v != ...}}).encode())


LIES = {
    "empty": b"",
    "short": b"\0\0\0",
    "header length": struct.pack("<Q", 1 << 62) + b"{}",
    "header past the end": struct.pack("<Q", 3) + b"{}",
    "large header": struct.pack("<Q", 9 << 20) + b" " * (9 << 20),
    "entry kind": _with_header(b'{"a": 5}'),
    "no offsets": _entry(data_offsets=...),
    "one offset": _entry(data_offsets=[0]),
    "negative offset": _entry(data_offsets=[-24, 0]),
    "reversed offsets": _entry(data_offsets=[24, 0]),
    "true offsets": _entry(data_offsets=[False, True]),
    "float offsets": _entry(data_offsets=[0.0, 24.0]),
    "past the end": _entry(data_offsets=[48, 72]),
    "huge offsets": _entry(data_offsets=[1 << 70, (1 << 70) + 24]),
    "wrong size": _entry(data_offsets=[0, 20]),
    "negative extent": _entry(shape=[-2, -3]),
    "huge extents": _entry(shape=[1 << 40] * 8),
    "many dimensions": _entry(shape=[1] * 99),
    "shape kind": _entry(shape="2, 3"),
    "dtype kind": _entry(dtype=["F32"]),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(tmp_path: Path, name: str) -> None:
    (found,) = diagnosed("safetensors-invalid", lambda: _read(tmp_path, LIES[name]))
    assert "x.safetensors" in found.message


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"\xff": 1}',
        b'{"a": 1, "a": 2}',
        b'{"a":' * 10_000,
        b'{"a": NaN}',
    ],
)
def test_header_json_is_strict(tmp_path: Path, header: bytes) -> None:
    diagnosed("json-invalid", lambda: _read(tmp_path, _with_header(header)))


def test_an_unknown_dtype_is_listed_but_not_readable(tmp_path: Path) -> None:
    stored = _read(tmp_path, _entry(dtype="F8_E4M3", data_offsets=[0, 6])).tensors["a"]
    assert (stored.dtype, stored.readable) == ("F8_E4M3", False)


def _index(folder: Path, weight_map: object) -> SafetensorsWeights:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return read_sharded(folder / INDEX_NAME)


def test_shards(tmp_path: Path) -> None:
    for name in ("a", "b"):
        raw = safetensors_bytes({name: VALUES * ord(name)})
        (tmp_path / f"model-{name}.safetensors").write_bytes(raw)
    source = _index(tmp_path, {"a": "model-a.safetensors", "b": "model-b.safetensors"})
    assert list(source.tensors) == ["a", "b"]
    np.testing.assert_array_equal(source.read("b"), VALUES * ord("b"))
    wrong = {"a": "model-b.safetensors"}
    diagnosed("safetensors-invalid", lambda: _index(tmp_path, wrong))


def test_tensors_of_shards_that_the_index_does_not_name(tmp_path: Path) -> None:
    """A head of its own, say, which transformers finds and which no tied embedding may replace."""
    for shard in ("a", "b"):
        tensors = {shard: VALUES, "head": VALUES * ord(shard)}
        (tmp_path / f"{shard}.safetensors").write_bytes(safetensors_bytes(tensors))
    found = _index(tmp_path, {"a": "a.safetensors"})
    np.testing.assert_array_equal(found.read("head"), VALUES * ord("a"))
    both = {"a": "a.safetensors", "b": "b.safetensors"}
    (told,) = diagnosed("safetensors-invalid", lambda: _index(tmp_path, both))
    assert "two shards hold tensor 'head'" in told.message


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "x.bin",
        "x\0.safetensors",
        ".safetensors",
        "",
        7,
        None,
        ["x.safetensors"],
    ],
)
def test_shard_names_cannot_leave_the_directory(tmp_path: Path, shard: object) -> None:
    (tmp_path / "secret.safetensors").write_bytes(safetensors_bytes({"a": VALUES}))
    folder = tmp_path / "model"
    folder.mkdir()
    (found,) = diagnosed("safetensors-invalid", lambda: _index(folder, {"a": shard}))
    assert "plain shard file name" in found.message


@pytest.mark.parametrize("weight_map", [None, [], "x", 3])
def test_an_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    diagnosed("safetensors-invalid", lambda: _index(tmp_path, weight_map))


def test_missing_and_too_many_shards(tmp_path: Path) -> None:
    (found,) = diagnosed(
        "safetensors-invalid", lambda: _index(tmp_path, {"a": "absent.safetensors"})
    )
    assert "absent.safetensors" in found.message
    many = {f"t{i}": f"s{i}.safetensors" for i in range(2000)}
    diagnosed("safetensors-invalid", lambda: _index(tmp_path, many))
