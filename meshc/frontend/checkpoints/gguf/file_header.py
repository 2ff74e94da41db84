"""The header of one GGUF file: metadata and the table of tensors, with every number checked.

Source: the GGUF specification of the ggml project (versions 2 and 3, little-endian). The ``gguf``
package's reader trusts the counts in the file and makes one array per list element, so it hangs
on lying counts and takes seconds on a large vocabulary; this module reads the header instead,
and the package dequantises (``gguf_reader``).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from meshc.frontend.checkpoints.bounded_files import open_regular
from meshc.frontend.checkpoints.gguf.encodings import ENCODINGS, Encoding
from meshc.support.diagnostics import fail

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
# Above any published file, small enough that the header is read in well under a second.
_MAX_HEADER_BYTES = 64 << 20
_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 16
_MAX_STRINGS = 1 << 20
_MAX_DEPTH = 8
_MAX_NAME_BYTES = 1 << 10
_MAX_DIMS = 4
_MAX_ELEMENTS = 1 << 40


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table. ``shape`` is in row-major order: (out, in) for a matrix. The
    tensor starts at byte ``place`` of ``file``."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    file: Path
    place: int

    @property
    def encoding(self) -> Encoding | None:
        """How the file stores it; None for a type meshc does not read."""
        return ENCODINGS.get(self.type_id)

    @property
    def size_bytes(self) -> int | None:
        """Bytes in the file; None for a type meshc does not read."""
        if self.encoding is None:
            return None
        return _product(self.shape) // self.encoding.elements * self.encoding.block_bytes


@dataclass(frozen=True)
class GgufHeader:
    """What the header says. Lists of strings and of lists are lists, those of numbers are NumPy
    arrays."""

    path: Path
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]


def read_header_of_file(file: Path) -> GgufHeader:
    """The header of ``file`` alone; every offset is checked against the file's size.

    Errors: ``checkpoint-unreadable``, ``gguf-invalid``.
    """
    stream, size = open_regular(file, "GGUF file")
    with stream:
        if size < 24:
            _invalid(file, f"it has only {size} bytes")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(file, data, size).header()


def _invalid(path: Path, reason: str) -> NoReturn:
    fail(
        "gguf-invalid",
        f"'{path}' is not a valid GGUF file: {reason}",
        help="the file is damaged or not GGUF; get it again",
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


class _Reader:
    """A cursor over the header bytes that never reads past their end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.data = data
        self.size = size
        self.offset = 0
        self.strings_left = _MAX_STRINGS

    def header(self) -> GgufHeader:
        if self.take(4) != _MAGIC:
            self.invalid("it does not start with 'GGUF'")
        version = self.u32()
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big-endian, " if swapped in _VERSIONS else ""
            self.invalid(f"version {version} is not supported ({kind}little-endian 2 or 3 is)")
        tensor_count = self.count("tensors", _MAX_TENSORS)
        pair_count = self.count("metadata pairs", _MAX_PAIRS)
        metadata = self.pairs(pair_count)
        tensors = self.tensor_table(tensor_count)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not _is_power_of_two(alignment):
            self.invalid("general.alignment is not a power of two")
        start = -(-self.offset // alignment) * alignment
        placed = {name: replace(one, place=start + one.place) for name, one in tensors.items()}
        for tensor in placed.values():
            self.check_place(tensor, start, alignment)
        return GgufHeader(self.path, metadata, placed)

    def pairs(self, count: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for _ in range(count):
            key = self.name("a metadata key")
            if key in metadata:
                self.invalid(f"metadata key '{key}' is given twice")
            metadata[key] = self.value(key)
        return metadata

    def value(self, key: str) -> object:
        kind = self.u32()
        if kind == _STRING:
            return self.string(f"the value of '{key}'")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.invalid(f"the value of '{key}' has unknown type {kind}")
        scalar = self.scalars(kind, 1)[0]
        return bool(scalar) if kind == _BOOL else scalar.item()

    def array(self, key: str, depth: int = 1) -> object:
        kind = self.u32()
        length = self.u64()
        if kind in (_STRING, _ARRAY):
            self.strings_left -= length
            if self.strings_left < 0:
                self.invalid(f"'{key}' claims {length} strings or lists")
            if kind == _STRING:
                return [self.string(f"an element of '{key}'") for _ in range(length)]
            if depth == _MAX_DEPTH:
                self.invalid(f"the value of '{key}' is lists within lists, {depth} deep")
            return [self.array(key, depth + 1) for _ in range(length)]
        if kind not in _SCALARS:
            self.invalid(f"the value of '{key}' is a list of unknown type {kind}")
        return self.scalars(kind, length)

    def tensor_table(self, count: int) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self.name("a tensor name")
            if name in tensors:
                self.invalid(f"tensor '{name}' is listed twice")
            tensors[name] = self.tensor(name)
        return tensors

    def tensor(self, name: str) -> GgufTensor:
        dims = self.u32()
        if not 1 <= dims <= _MAX_DIMS:
            self.invalid(f"tensor '{name}' has {dims} dimensions")
        # The file lists the fastest-varying dimension first.
        shape = tuple(self.u64() for _ in range(dims))[::-1]
        if not 0 < _product(shape) <= _MAX_ELEMENTS:
            self.invalid(f"tensor '{name}' has the shape {list(shape)}")
        return GgufTensor(name, shape, self.u32(), self.path, self.u64())

    def check_place(self, tensor: GgufTensor, start: int, alignment: int) -> None:
        size, encoding = tensor.size_bytes, tensor.encoding
        if (tensor.place - start) % alignment:
            self.invalid(f"tensor '{tensor.name}' is not aligned to {alignment} bytes")
        if encoding is not None and tensor.shape[-1] % encoding.elements:
            self.invalid(
                f"the rows of tensor '{tensor.name}', of {tensor.shape[-1]} elements, do not fill "
                f"whole blocks of {encoding.elements}, as {encoding.name} has"
            )
        end = tensor.place + (size or 0)
        if end > self.size:
            self.invalid(f"tensor '{tensor.name}' ends at byte {end} of {self.size}")

    def count(self, what: str, limit: int) -> int:
        number = self.u64()
        if number > limit:
            self.invalid(f"it claims {number} {what}")
        return number

    def name(self, what: str) -> str:
        text = self.string(what, _MAX_NAME_BYTES)
        if not text or not text.isprintable():
            self.invalid(f"{what} is empty or unprintable")
        return text

    def string(self, what: str, limit: int = _MAX_HEADER_BYTES) -> str:
        length = self.u64()
        if length > limit:
            self.invalid(f"{what} claims {length} bytes")
        start = self.offset
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            self.invalid(f"byte {start + error.start}, in {what}, is not UTF-8")

    def scalars(self, kind: int, length: int) -> np.ndarray:
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(length * dtype.itemsize), dtype=dtype)

    def u32(self) -> int:
        return int(_U32(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64(self.take(8))[0])

    def take(self, length: int) -> bytes:
        end = self.offset + length
        if end > self.size:
            self.invalid(f"it ends at byte {self.size}, in the middle of its header")
        if end > _MAX_HEADER_BYTES:
            self.invalid(f"its header is longer than {_MAX_HEADER_BYTES} bytes")
        piece = self.data[self.offset : end]
        self.offset = end
        return piece

    def invalid(self, reason: str) -> NoReturn:
        _invalid(self.path, reason)


_U32: Callable[[bytes], tuple[int, ...]] = struct.Struct("<I").unpack
_U64: Callable[[bytes], tuple[int, ...]] = struct.Struct("<Q").unpack


def _is_power_of_two(number: int) -> bool:
    return 0 < number <= 1 << 20 and number & (number - 1) == 0
