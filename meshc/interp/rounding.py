"""Rounding to the element types of core memory; numbers are kept as float32 or int32 arrays."""

from __future__ import annotations

import numpy as np

from meshc.interp.named import Array
from meshc.ir.coded_rows import LEAST_EXPONENT, MOST_EXPONENT
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


def coded_rows(values: Array) -> Array:
    """``values`` as caches that are coded as e4m3 keep them (:mod:`meshc.ir.coded_rows`), whose
    rows the last dim has."""
    kind = np.result_type(values, np.float32)
    exact = values.astype(kind)
    most = np.max(np.abs(exact), axis=-1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        # Of the most a, 448 * 2**e is at least a: 448 is 7/8 of 2**9.
        part, power = np.frexp(most)
        exponent = np.maximum(power - 9 + (part > 7 / 8), LEAST_EXPONENT)
        scale = np.ldexp(np.ones_like(most), exponent)
        infinite = ~np.isfinite(most) | (exponent > MOST_EXPONENT)
        given = np.where(infinite, np.ones_like(exact), exact / scale)
        # Floats have four bits, and steps of 2**-9 below 2**-6.
        step = np.ldexp(np.ones_like(given), np.maximum(np.frexp(given)[1], -5) - 4)
        return np.asarray(np.rint(given / step) * step * np.where(infinite, np.inf, scale))


def _to_bf16(values: Array) -> Array:
    """The upper 16 bits of float32, rounded; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    kept = (nearest & np.uint32(0xFFFF0000)).view(np.float32).reshape(values.shape)
    return np.where(np.isnan(values), values, kept)
