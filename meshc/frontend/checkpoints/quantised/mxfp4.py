"""Experts of gpt-oss in MXFP4: numbers of 4 bits (e2m1), of which 32 share a power of two.

``X_blocks`` U8 [experts, outputs, groups, 16] and ``X_scales`` U8 [experts, outputs, groups] are
offered as ``X`` [experts, inputs, outputs], which the model has where nothing is quantised. The low
half of a byte comes first; a scale is an exponent with a bias of 127. Source:
``convert_moe_packed_tensors`` in the MXFP4 integration of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from meshc.frontend.checkpoints.safetensors_reader import SafetensorsWeights
from meshc.frontend.checkpoints.tensor_source import Encoded, Part, StoredTensor
from meshc.ir.codes import CodeFormat
from meshc.ir.stored import E2M1, floats
from meshc.support.diagnostics import fail

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16
_NO_NUMBER = 255


class Mxfp4Weights:
    """The tensors of ``files``, those in MXFP4 decoded."""

    def __init__(self, files: SafetensorsWeights) -> None:
        self._files = files

    @property
    def label(self) -> str:
        """The files, for messages."""
        return self._files.label

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, or all shards."""
        return self._files.files

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every weight, those in MXFP4 in the shape that they decode to.

        Errors: ``quantised-weights-invalid``.
        """
        found = {}
        for name, stored in self._files.tensors.items():
            stem = name.removesuffix(_BLOCKS)
            if stem != name:
                experts, outputs, groups, _ = self._checked(stem)
                shape = (experts, groups * 2 * _BLOCK_BYTES, outputs)
                found[stem] = StoredTensor(shape, "MXFP4", True, ("mxfp4",), along=1)
            elif f"{name.removesuffix(_SCALES)}{_BLOCKS}" not in self._files.tensors:
                found[name] = stored
        return found

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32 in the shape of ``tensors``.

        Errors: ``safetensors-invalid``, ``quantised-weights-invalid``.
        """
        if name in self._files.tensors:
            return self._files.read(name, part)
        blocks, scales = self._stored(name, part)
        experts, outputs, groups, size = blocks.shape
        found = np.empty((experts, groups * 2 * size, outputs), np.float32)
        for expert in range(experts):
            found[expert] = _decoded(blocks[expert], scales[expert]).T
        return found

    def _stored(self, name: str, part: Part | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The blocks and scales of ``name``, or of a part of it."""
        blocks = self._files.read_codes(f"{name}{_BLOCKS}")
        scales = self._files.read_codes(f"{name}{_SCALES}")
        if part is not None and part.axis == 0:
            blocks, scales = blocks[part.start : part.stop], scales[part.start : part.stop]
        elif part is not None:
            blocks, scales = blocks[:, part.start : part.stop], scales[:, part.start : part.stop]
        if (scales == _NO_NUMBER).any():
            _invalid(self.label, name, "a scale is no number")
        return blocks, scales

    def mapped(self, name: str) -> np.ndarray | None:
        """The tensor ``name``, mapped into memory, None for one in MXFP4. Errors:
        ``safetensors-invalid``."""
        return self._files.mapped(name) if name in self._files.tensors else None

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """The tensor ``name`` as it is stored, ``[experts, inputs, outputs]`` and groups of inputs.

        Errors: ``safetensors-invalid``, ``quantised-weights-invalid``.
        """
        blocks, scales = self._stored(name)
        codes = _in_order(blocks).reshape(*blocks.shape[:2], -1)
        return Encoded(
            codes.view(E2M1).swapaxes(1, 2),
            np.ldexp(np.float32(1.0), scales.astype(np.int32) - 127).swapaxes(1, 2),
        )

    def _checked(self, stem: str) -> tuple[int, ...]:
        """The shape of the blocks of ``stem``, which its scales fit."""
        blocks = self._files.tensors[f"{stem}{_BLOCKS}"]
        scales = self._files.tensors.get(f"{stem}{_SCALES}")
        if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[3] != _BLOCK_BYTES:
            _invalid(self.label, stem, f"its blocks are {blocks.dtype} {list(blocks.shape)}")
        if scales is None or (scales.dtype, scales.shape) != ("U8", blocks.shape[:3]):
            shown = f"{scales.dtype} {list(scales.shape)}" if scales else "missing"
            _invalid(self.label, stem, f"its scales are {shown}, not U8 {list(blocks.shape[:3])}")
        return blocks.shape


def _decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers float32 [outputs, inputs] of ``blocks`` uint8 [outputs, groups, 16] and their
    ``scales`` [outputs, groups]."""
    numbers = floats(_in_order(blocks).reshape(*scales.shape, -1).view(E2M1))
    numbers *= np.ldexp(np.float32(1.0), scales[..., None].astype(np.int32) - 127)
    return np.asarray(numbers.reshape(len(blocks), -1))


def _in_order(blocks: np.ndarray) -> np.ndarray:
    """The codes of bytes, the one in the low half of each first, along a new axis."""
    return np.asarray(np.stack((blocks & np.uint8(15), blocks >> np.uint8(4)), axis=-1))


def _invalid(label: str, name: str, reason: str) -> NoReturn:
    fail(
        "quantised-weights-invalid",
        f"the quantised weight '{name}' in '{label}' cannot be decoded: {reason}",
        help="the file is damaged or incomplete; get it again",
    )
