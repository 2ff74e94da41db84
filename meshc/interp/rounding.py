"""Rounding to the element types of core memory; numbers are kept as float32 or int32 arrays."""

from __future__ import annotations

import numpy as np

from meshc.interp.named import Array
from meshc.ir.types import DType


def storage(dtype: DType) -> np.dtype[np.float32] | np.dtype[np.int32]:
    """The NumPy type that holds elements of ``dtype``."""
    return np.dtype(np.int32) if dtype is DType.I32 else np.dtype(np.float32)


def rounded(values: Array, dtype: DType) -> Array:
    """``values`` after a store to memory of ``dtype``: to nearest, ties to even."""
    if dtype is DType.F16:
        return values.astype(np.float16).astype(np.float32)
    if dtype is DType.BF16:
        return _to_bf16(values.astype(np.float32))
    return values.astype(storage(dtype))


def _to_bf16(values: Array) -> Array:
    """The upper 16 bits of float32, rounded; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    kept = (nearest & np.uint32(0xFFFF0000)).view(np.float32).reshape(values.shape)
    return np.where(np.isnan(values), values, kept)
