"""Quantised weights of safetensors files under the names of plain ones, decoded when they are read.

``X.qweight`` with its scales, and ``X.weight`` in fp8 with its scales, are offered as ``X.weight``
[outputs, inputs]. Which weights are quantised is what the files hold: embeddings, heads and norms
that are not are offered as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from meshc.frontend.checkpoints.quantised import int4
from meshc.frontend.checkpoints.quantised.method import Awq, Fp8, Gptq, OfMatrices
from meshc.frontend.checkpoints.safetensors_reader import SafetensorsWeights
from meshc.frontend.checkpoints.tensor_source import Encoded, Part, StoredTensor
from meshc.ir.codes import CODE_FORMATS, CodeFormat
from meshc.ir.stored import E4M3, Scaled
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

_PACKED = 8
"""Codes of 4 bits in a word."""
_SYMMETRIC_ZERO = 8
_OF_INT4 = ("qweight", "qzeros", "scales", "g_idx")
_SCALES_OF_FP8 = ("weight_scale_inv", "weight_scale")
_OF_INPUTS = ("input_scale", "activation_scale", "input_scale_ub")
_OF_CACHES = (
    *("k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale", "output_scale"),
    *("k_zero_point", "v_zero_point", "q_zero_point", "prob_output_scale"),
)
_FP8 = "F8_E4M3"
_FLOATS = ("F32", "F16", "BF16")


class QuantisedWeights:
    """The tensors of ``files`` that are quantised as ``quantization`` says."""

    def __init__(self, files: SafetensorsWeights, quantization: OfMatrices) -> None:
        self._files = files
        self._quantization = quantization

    @property
    def label(self) -> str:
        """The files, for messages."""
        return self._files.label

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every weight, those that are quantised in the shape that they decode to.

        Errors: ``quantised-weights-invalid``.
        """
        found = {}
        for name, stored in self._files.tensors.items():
            stem, _, part = name.rpartition(".")
            if self._is_int4(stem) and part in _OF_INT4:
                found[f"{stem}.weight"] = self._int4(stem)
            elif stored.dtype == _FP8 and part == "weight" and isinstance(self._quantization, Fp8):
                self._scales(stem)
                found[name] = StoredTensor(stored.shape, _FP8, True, self._kept_fp8(stored.shape))
            elif not self._belongs_to_fp8(stem, part):
                found[name] = stored
        return found

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """The tensor ``name``, or a part of it, as float32 in the shape of ``tensors``. One that is
        quantised is decoded whole, whatever the part.

        Errors: ``safetensors-invalid``, ``quantised-weights-invalid``.
        """
        if name in self._files.tensors and self.tensors[name].dtype != _FP8:
            return self._files.read(name, part)
        whole = self._decoded(name)
        return whole if part is None else whole.take(range(part.start, part.stop), part.axis)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors, and the configs beside them, which say how."""
        held = self._files.files
        return (*held, *sorted({path.parent / "config.json" for path in held}))

    def mapped(self, name: str) -> np.ndarray | Scaled | None:
        """The tensor ``name``, mapped into memory, None for one of codes of 4 bits. Errors:
        ``safetensors-invalid``."""
        found = self._files.mapped(name) if name in self._files.tensors else None
        return self._scaled(name, found) if found is not None and found.dtype == E4M3 else found

    def _decoded(self, name: str) -> np.ndarray:
        """The quantised weight ``name``, float32 [outputs, inputs]."""
        if not isinstance(self._quantization, Fp8):
            return self._read_int4(name.rpartition(".")[0])
        return np.asarray(self._scaled(name, self._files.read_codes(name).view(E4M3)))

    def _scaled(self, name: str, codes: np.ndarray) -> Scaled:
        """The weight ``name``, in fp8, of which these are the codes."""
        assert isinstance(self._quantization, Fp8)
        stored, grid = self._scales(name.rpartition(".")[0])
        rows, columns = self._quantization.block or (len(codes) // grid[0], codes.shape[1])
        scales = np.repeat(self._files.read(stored).reshape(grid), rows, 0)
        return Scaled(codes, scales[: len(codes)], columns)

    def _is_int4(self, stem: str) -> bool:
        return f"{stem}.qweight" in self._files.tensors and not isinstance(self._quantization, Fp8)

    def _belongs_to_fp8(self, stem: str, part: str) -> bool:
        """Whether it is no weight, but a scale of one, of inputs, or of cached keys and values."""
        if isinstance(self._quantization, Fp8) and part in _OF_CACHES:
            return True
        weight = self._files.tensors.get(f"{stem}.weight")
        fp8 = isinstance(self._quantization, Fp8) and weight is not None and weight.dtype == _FP8
        return fp8 and part in (*_SCALES_OF_FP8, *_OF_INPUTS)

    def _int4(self, stem: str) -> StoredTensor:
        """The weight that the tensors of ``stem`` decode to, whose shapes are held together."""
        awq = isinstance(self._quantization, Awq)
        words = self._shape(stem, "qweight", "I32")
        if len(words) != 2:
            self._invalid(stem, f"'qweight' has the shape {list(words)}")
        inputs, outputs = words
        inputs, outputs = (inputs, outputs * _PACKED) if awq else (inputs * _PACKED, outputs)
        groups = self._groups(inputs)
        if outputs % _PACKED:
            self._invalid(stem, f"{outputs} outputs do not fill words of {_PACKED}")
        shapes = {"scales": (groups, outputs), "qzeros": (groups, outputs // _PACKED)}
        for part, wanted in shapes.items():
            found = self._shape(stem, part, "I32" if part == "qzeros" else None)
            if found != wanted:
                self._invalid(
                    stem,
                    f"'{part}' has the shape {list(found)}, not {list(wanted)}: {inputs} inputs "
                    f"are {groups} groups",
                )
        if self._is_reordered(stem) and self._shape(stem, "g_idx", "I32") != (inputs,):
            self._invalid(stem, f"'g_idx' does not have a group for each of {inputs} inputs")
        assert not isinstance(self._quantization, Fp8)
        form = f"int4_{self._quantization.group}"
        in_order = not self._is_reordered(stem) or self._is_in_order(stem, inputs)
        kept = (form,) if form in CODE_FORMATS and in_order else ()
        return StoredTensor((outputs, inputs), "I32 words of 4 bits", True, kept)

    def _is_in_order(self, stem: str, inputs: int) -> bool:
        """Whether inputs of a group lie side by side."""
        assert not isinstance(self._quantization, Fp8)
        size = self._quantization.group or max(inputs, 1)
        return bool((self._files.read_codes(f"{stem}.g_idx") == np.arange(inputs) // size).all())

    def _groups(self, inputs: int) -> int:
        assert not isinstance(self._quantization, Fp8)
        return -(-inputs // self._quantization.group) if self._quantization.group else 1

    def _is_reordered(self, stem: str) -> bool:
        """Whether a tensor says which group each input belongs to."""
        if not isinstance(self._quantization, Gptq):
            return False
        return self._quantization.reordered or f"{stem}.g_idx" in self._files.tensors

    def _read_int4(self, stem: str) -> np.ndarray:
        _, inputs = self.tensors[f"{stem}.weight"].shape
        codes, zeros, scales = self._parts(stem)
        return int4.decoded(codes, zeros, scales, self._group_of(stem, inputs, len(scales)))

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """The weight ``name`` as it is stored, in ``form``, which is one that it is ``kept`` in.

        Errors: ``safetensors-invalid``, ``quantised-weights-invalid``.
        """
        if isinstance(self._quantization, Fp8):
            return self._encoded_fp8(name, form)
        codes, zeros, scales = self._parts(name.rpartition(".")[0])
        return Encoded(codes.T, scales.T, (zeros * -scales).T)

    def _kept_fp8(self, shape: Sequence[int]) -> tuple[str, ...]:
        """The formats whose groups lie within what has one scale."""
        assert isinstance(self._quantization, Fp8)
        block = self._quantization.block
        columns = shape[-1] if block is None else math.gcd(shape[-1], block[1])
        sizes = sorted(
            (f.group for f in CODE_FORMATS.values() if f.codes is DType.E4M3), reverse=True
        )
        return tuple(f"e4m3_{size}" for size in sizes if columns % size == 0)

    def _encoded_fp8(self, name: str, form: CodeFormat) -> Encoded:
        scaled = self._scaled(name, self._files.read_codes(name).view(E4M3))
        groups = scaled.codes.shape[1] // form.group
        scales = np.repeat(scaled.scales, scaled.group // form.group, 1)
        return Encoded(scaled.codes, scales[:, :groups])

    def _parts(self, stem: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes uint8 [inputs, outputs], zero points and scales float32 [groups, outputs]."""
        words = self._files.read_codes(f"{stem}.qweight")
        zero_words = self._files.read_codes(f"{stem}.qzeros")
        scales = self._files.read(f"{stem}.scales")
        if isinstance(self._quantization, Gptq):
            zeros = self._gptq_zeros(stem, int4.gptq_zero_codes(zero_words))
            return int4.gptq_weight_codes(words), zeros, scales
        return int4.awq_codes(words), int4.awq_codes(zero_words).astype(np.float32), scales

    def _gptq_zeros(self, stem: str, stored: np.ndarray) -> np.ndarray:
        assert isinstance(self._quantization, Gptq)
        zeros = stored + np.uint8(self._quantization.added)
        if zeros.size and zeros.max() > 15:
            self._invalid(
                stem,
                "a stored zero point is 15; some readers take it for 0 and others for 16",
            )
        if self._quantization.symmetric and (zeros != _SYMMETRIC_ZERO).any():
            self._invalid(
                stem,
                f"it is said to be symmetric, but a zero point is {int(zeros.ravel()[0])}, not "
                f"{_SYMMETRIC_ZERO}: is 'checkpoint_format' right?",
            )
        return zeros.astype(np.float32)

    def _group_of(self, stem: str, inputs: int, groups: int) -> np.ndarray:
        if self._is_reordered(stem):
            found = self._files.read_codes(f"{stem}.g_idx")
            if found.size and (found.min() < 0 or found.max() >= groups):
                self._invalid(stem, f"'g_idx' names groups beyond the {groups} that there are")
            return found
        assert not isinstance(self._quantization, Fp8)
        return np.arange(inputs) // (self._quantization.group or max(inputs, 1))

    def _scales(self, stem: str) -> tuple[str, tuple[int, int]]:
        """The scales of a weight in fp8, and how many there are along its outputs and inputs."""
        assert isinstance(self._quantization, Fp8)
        weight, block = self._files.tensors[f"{stem}.weight"].shape, self._quantization.block
        if len(weight) != 2:
            self._invalid(stem, f"it has the shape {list(weight)}, which no scales are known for")
        present = [part for part in _SCALES_OF_FP8 if f"{stem}.{part}" in self._files.tensors]
        if len(present) != 1:
            self._invalid(stem, f"{len(present)} tensors are its scales")
        shape = self._shape(stem, present[0], None)
        allowed: list[tuple[int, ...]] = [(), (1,), (1, 1), (weight[0],), (weight[0], 1)]
        if block is not None:
            allowed = [(-(-weight[0] // block[0]), -(-weight[1] // block[1]))]
        if shape not in allowed:
            shown = " or ".join(str(list(each)) for each in allowed)
            self._invalid(stem, f"its scales have the shape {list(shape)}, not {shown}")
        return f"{stem}.{present[0]}", ((*shape, 1, 1)[0], (*shape, 1, 1)[1])

    def _shape(self, stem: str, part: str, dtype: str | None) -> tuple[int, ...]:
        """The shape of ``stem.part``, which must be there, of ``dtype`` or any floats."""
        stored = self._files.tensors.get(f"{stem}.{part}")
        if stored is None:
            self._invalid(stem, f"'{part}' is missing")
        if stored.dtype not in ((dtype,) if dtype else _FLOATS):
            self._invalid(stem, f"'{part}' has the type {stored.dtype}")
        return stored.shape

    def _invalid(self, stem: str, reason: str) -> NoReturn:
        fail(
            "quantised-weights-invalid",
            f"the quantised weight '{stem}' in '{self.label}' cannot be decoded: {reason}",
            help="the file does not fit the quantization_config beside it, or is damaged",
        )
