"""What a weights file offers, whatever its format, and reading its rows in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshc.frontend.checkpoints.bounded_files import open_regular
from meshc.ir.codes import CodeFormat
from meshc.ir.stored import BF16, Scaled

Rows = Callable[[np.ndarray], np.ndarray]

FLOATS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BF16,
}
"""Elements that are numbers as they stand, by the word for them in files of both kinds."""

_CHUNK_BYTES = 16 << 20
"""Bytes of the numbers that are made at a time; whoever decodes them takes a few times as much."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: row-major ``shape``, the file's word for its ``dtype``. Its codes and
    scales have the formats ``kept`` of `CODE_FORMATS`, those with larger groups first, and groups
    lie ``along`` this axis."""

    shape: tuple[int, ...]
    dtype: str
    readable: bool
    kept: tuple[str, ...] = ()
    along: int = -1


@dataclass(frozen=True)
class Encoded:
    """A tensor as it is stored, such as a matrix [outputs, inputs]: ``codes`` uint8, or where they
    are floats themselves these, or elements of :mod:`meshc.ir.stored`, and of groups along one axis
    ``scales`` and, in some formats, ``least`` numbers, or codes of these and the ``units`` and
    ``least_units`` of larger groups; float32, such as [outputs, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    least: np.ndarray | None = None
    units: np.ndarray | None = None
    least_units: np.ndarray | None = None

    def part(self, name: str) -> np.ndarray:
        """What is called so in `meshc.ir.codes`."""
        found: np.ndarray | None = getattr(self, name)
        assert found is not None
        return found


class Part(NamedTuple):
    """What is read of a tensor: the indices from ``start`` to ``stop`` of its first or last
    ``axis``."""

    axis: int
    start: int
    stop: int

    def of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of this part of a tensor of ``shape``."""
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])


class TensorSource(Protocol):
    """The tensors of one checkpoint under the names that its files use."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor in the files."""

    @property
    def label(self) -> str:
        """The file or directory, for messages."""

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32 in its stored shape."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that say what the tensors are."""

    def mapped(self, name: str) -> np.ndarray | Scaled | None:
        """The tensor ``name`` in its stored shape, mapped into memory: float32, float16,
        :data:`meshc.ir.stored.BF16`, or codes with scales; None for one that must be decoded."""

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """The matrix ``name`` as it is stored, in ``form``, which is one that it is ``kept`` in."""


def read_rows(
    path: Path,
    offset: int,
    shape: tuple[int, ...],
    row_bytes: int,
    convert: Rows,
    part: Part | None = None,
) -> np.ndarray | None:
    """The tensor of ``shape`` at byte ``offset`` as float32, or a ``part`` of it; None when the
    file is too short.

    ``convert`` maps uint8 [rows, row_bytes] to float32 [rows, shape[-1]]. As many rows are
    read at a time as are a few megabytes of float32: the peak is the result plus some chunks.
    """
    part = part or Part(0, 0, shape[0])
    wanted = part.of(shape)
    inner = math.prod(shape[1:-1]) if len(shape) > 1 else 1
    first, rows = 0, math.prod(shape[:-1])
    columns = slice(None)
    if part.axis == len(shape) - 1:
        columns = slice(part.start, part.stop)
    else:
        first, rows = part.start * inner, (part.stop - part.start) * inner
    out = np.empty((rows, wanted[-1]), dtype=np.float32)
    step = max(1, _CHUNK_BYTES // max(row_bytes, out.itemsize * shape[-1], 1))
    stream, _ = open_regular(path, "weights file")
    with stream:
        stream.seek(offset + first * row_bytes)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            raw = stream.read((stop - start) * row_bytes)
            if len(raw) != (stop - start) * row_bytes:
                return None
            block = np.frombuffer(raw, dtype=np.uint8).reshape(stop - start, row_bytes)
            out[start:stop] = convert(block)[:, columns]
    return out.reshape(wanted)


def map_elements(
    path: Path, offset: int, shape: tuple[int, ...], kind: np.dtype[Any]
) -> np.ndarray | None:
    """The tensor of ``shape`` and ``kind`` at byte ``offset``, mapped into memory, as long as
    nothing holds it; None when the file is too short."""
    stream, size = open_regular(path, "weights file")
    with stream:
        if offset + math.prod(shape) * kind.itemsize > size:
            return None
        return np.memmap(stream, kind, offset=offset, shape=shape, mode="r")


def read_bytes(path: Path, offset: int, count: int) -> np.ndarray | None:
    """``count`` bytes at ``offset``, uint8; None when the file is too short."""
    stream, _ = open_regular(path, "weights file")
    with stream:
        stream.seek(offset)
        raw = stream.read(count)
    return np.frombuffer(raw, np.uint8) if len(raw) == count else None
