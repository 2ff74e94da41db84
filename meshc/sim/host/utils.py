"""Array helpers of host scripts."""

from __future__ import annotations

from typing import Any

import numpy as np


def cast_uint32(x: Any) -> Any:
    """A number as its raw 32-bit word."""
    if isinstance(x, int):
        return np.uint32(x & 0xFFFFFFFF)
    if isinstance(x, float):
        return np.float32(x).view(np.uint32)
    array = np.asarray(x)
    if array.dtype.itemsize == 2:
        return np.uint32(array.reshape(1).view(np.uint16)[0])
    return array.reshape(1).view(np.uint32)[0]


def input_array_to_u32(
    np_arr: Any = None, sentinel: Any = None, fast_dim_sz: int = 1, arr: Any = None
) -> Any:
    """16-bit values in the low halves of words; with a sentinel the index in the high halves."""
    given = np.asarray(arr if np_arr is None else np_arr)
    flat = np.ascontiguousarray(given).reshape(-1)
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32)
    words = flat.view(np.uint16).astype(np.uint32)
    if sentinel is not None:
        index = np.arange(len(words), dtype=np.uint32) % np.uint32(fast_dim_sz)
        words = words | index << np.uint32(16)
    return words


def memcpy_view(arr: Any, datatype: Any = np.uint32) -> Any:
    """The values of ``datatype`` in an array of 32-bit words (the low halves for 16 bits)."""
    dtype = np.dtype(datatype)
    words = np.asarray(arr).view(np.uint32)
    if dtype.itemsize == 4:
        return words.view(dtype)
    return words.view(np.uint16)[..., ::2].view(dtype)


def calculate_cycles(timestamps: Any) -> int:
    """End minus start of two 48-bit counters in words of 16 bits."""
    words = np.asarray(timestamps)
    halves = words.view(np.uint16) if words.dtype.itemsize != 2 else words
    return sub_ts(halves.reshape(-1)[:6])


def make_u48(words: Any) -> int:
    """A counter of 48 bits in three words of 16."""
    low, middle, high = (int(word) for word in words[:3])
    return low + (middle << 16) + (high << 32)


def sub_ts(words: Any) -> int:
    """The second of two counters of three words, minus the first."""
    return make_u48(words[3:]) - make_u48(words[:3])


def float_to_hex(value: float) -> str:
    """The pattern of a number in single precision."""
    return hex(int(np.float32(value).view(np.uint32)))
