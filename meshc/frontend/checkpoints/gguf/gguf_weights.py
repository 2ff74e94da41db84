"""Weights of a GGUF file as float32. The only user of the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from meshc.frontend.checkpoints.gguf.blocks import CODES_OF
from meshc.frontend.checkpoints.gguf.encodings import ENCODINGS, MXFP4, decode_mxfp4
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.missing_packages import fail_missing_extra
from meshc.frontend.checkpoints.tensor_source import (
    FLOATS,
    Encoded,
    Part,
    StoredTensor,
    map_elements,
    read_bytes,
    read_rows,
)
from meshc.ir.codes import CodeFormat
from meshc.support.diagnostics import fail


def _part(name: str) -> Any:
    """A module of the package, which takes 70 ms to import."""
    return import_module(f"gguf.{name}")


@cache
def _installed() -> bool:
    try:
        return _part("quants") is not None
    except ImportError:
        return False


def gguf_type_name(type_id: int) -> str:
    """The format's word for a tensor type, as far as it is known."""
    if type_id in ENCODINGS:
        return ENCODINGS[type_id].name
    if _installed() and type_id in list(_part("constants").GGMLQuantizationType):
        return str(_part("constants").GGMLQuantizationType(type_id).name)
    return f"type {type_id}"


class GgufWeights:
    """The tensors of one GGUF file. Raises ``missing-extra`` without the ``gguf`` package."""

    def __init__(self, header: GgufHeader) -> None:
        if not _installed():
            fail_missing_extra("gguf", f"reading the weights in '{header.path}'")
        self.header = header

    @property
    def label(self) -> str:
        """The file, for messages."""
        return str(self.header.path)

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor of the file."""
        return {
            tensor.name: StoredTensor(
                tensor.shape,
                gguf_type_name(tensor.type_id),
                tensor.encoding is not None,
                (gguf_type_name(tensor.type_id).lower(),) if tensor.type_id in CODES_OF else (),
            )
            for tensor in self.header.tensors.values()
        }

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32. Errors: ``gguf-invalid``."""
        tensor = self.header.tensors[name]
        encoding = ENCODINGS[tensor.type_id]
        found = read_rows(
            tensor.file,
            tensor.place,
            tensor.shape,
            tensor.shape[-1] // encoding.elements * encoding.block_bytes,
            partial(_dequantize, tensor.type_id),
            part,
        )
        if found is None:
            fail("gguf-invalid", f"'{self.label}' ends inside tensor '{name}'", help="get it again")
        return found

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and those that it is split into."""
        return tuple(sorted({self.header.path, *(t.file for t in self.header.tensors.values())}))

    def mapped(self, name: str) -> np.ndarray | None:
        """The tensor ``name``, mapped into memory. Errors: ``gguf-invalid``."""
        tensor = self.header.tensors[name]
        kind = FLOATS.get(gguf_type_name(tensor.type_id))
        if kind is None:
            return None
        found = map_elements(tensor.file, tensor.place, tensor.shape, kind)
        if found is None:
            fail("gguf-invalid", f"'{self.label}' ends inside tensor '{name}'", help="get it again")
        return found

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """The tensor ``name`` as its blocks hold it. Errors: ``gguf-invalid``."""
        tensor = self.header.tensors[name]
        encoding, size = ENCODINGS[tensor.type_id], tensor.size_bytes
        assert size is not None
        raw = read_bytes(tensor.file, tensor.place, size)
        if raw is None:
            fail("gguf-invalid", f"'{self.label}' ends inside tensor '{name}'", help="get it again")
        return CODES_OF[tensor.type_id](raw.reshape(*tensor.shape[:-1], -1, encoding.block_bytes))


def _dequantize(type_id: int, rows: np.ndarray) -> np.ndarray:
    # A scale may be infinite in a damaged file; the values then are, too.
    with np.errstate(all="ignore"):
        if type_id == MXFP4:
            return decode_mxfp4(rows)
        kind = _part("constants").GGMLQuantizationType(type_id)
        return np.asarray(_part("quants").dequantize(rows, kind), dtype=np.float32)
