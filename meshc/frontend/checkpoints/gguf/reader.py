"""Weights of a GGUF file as float32. The only user of the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

import numpy as np

from meshc.frontend.checkpoints.extras import fail_missing_extra
from meshc.frontend.checkpoints.gguf.encodings import ENCODINGS
from meshc.frontend.checkpoints.gguf.header import GgufHeader
from meshc.frontend.checkpoints.tensor_source import Part, StoredTensor, read_rows
from meshc.support.diagnostics import fail

try:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    _INSTALLED = True
except ImportError:
    _INSTALLED = False


def gguf_type_name(type_id: int) -> str:
    """The format's word for a tensor type, as far as it is known."""
    if type_id in ENCODINGS:
        return ENCODINGS[type_id].name
    if _INSTALLED and type_id in list(GGMLQuantizationType):
        return str(GGMLQuantizationType(type_id).name)
    return f"type {type_id}"


class GgufWeights:
    """The tensors of one GGUF file. Raises ``missing-extra`` without the ``gguf`` package."""

    def __init__(self, header: GgufHeader) -> None:
        if not _INSTALLED:
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
                tensor.shape, gguf_type_name(tensor.type_id), tensor.encoding is not None
            )
            for tensor in self.header.tensors.values()
        }

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32. Errors: ``gguf-invalid``."""
        tensor = self.header.tensors[name]
        encoding = ENCODINGS[tensor.type_id]
        found = read_rows(
            self.header.path,
            self.header.data_start + tensor.offset,
            tensor.shape,
            tensor.shape[-1] // encoding.elements * encoding.block_bytes,
            partial(_dequantize, tensor.type_id),
            part,
        )
        if found is None:
            fail("gguf-invalid", f"'{self.label}' ends inside tensor '{name}'", help="get it again")
        return found


def _dequantize(type_id: int, rows: np.ndarray) -> np.ndarray:
    # A scale may be infinite in a damaged file; the values then are, too.
    with np.errstate(all="ignore"):
        return np.asarray(dequantize(rows, GGMLQuantizationType(type_id)), dtype=np.float32)
