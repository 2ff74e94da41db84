"""Elements of weights as 16-bit words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.ir.stored import BF16, floats

Array = NDArray[Any]
Words = NDArray[np.uint16]
_RUN = 1 << 16
_TILE_ROWS, _TILE_COLUMNS = 64, 256
"""What is done at once: elements whose type is changed, a tile of a matrix whose rows become
columns."""


WORDS: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "bf16": BF16}
"""How elements of 16 bits are held."""


def are_words(values: Array) -> bool:
    """Whether ``values`` are words of one of both types already."""
    return values.dtype in WORDS.values()


@cache
def _table(dtype: str) -> Words:
    """The words of ``dtype`` for all those of the other type."""
    (other,) = (kind for name, kind in WORDS.items() if name != dtype)
    return _rounded(np.arange(1 << 16, dtype=np.uint16).view(other), dtype)


def words(values: Array, dtype: str) -> Words:
    """``values`` rounded to nearest even to ``f16`` or ``bf16``, of their shape; a view of those
    that are such words."""
    given = np.asarray(values)
    if not are_words(given):
        return _rounded(given, dtype)
    held = given.view(np.uint16)
    return held if given.dtype == WORDS[dtype] else _table(dtype)[held]


def _rounded(given: Array, dtype: str) -> Words:
    found = np.empty(given.shape, np.uint16)
    rounded = _f16_words if dtype == "f16" else _bf16_words
    for source, target in zip(_runs(given), _runs(found), strict=True):
        rounded(floats(source), target)
    return found


def _runs(values: Array) -> Iterator[Array]:
    """``values`` as vectors that a processor's cache holds; those of an array that does not lie in
    order are copies."""
    flat = values.reshape(-1)
    return (flat[at : at + _RUN] for at in range(0, flat.size, _RUN))


def _f16_words(values: Array, target: Words) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        target.view(np.float16)[:] = values


def _bf16_words(values: Array, target: Words) -> None:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    low, high = bits.view(np.uint16)[0::2], bits.view(np.uint16)[1::2]
    if not low.any():  # as of all weights that are stored in bf16
        target[:] = high
        return
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    target[:] = rounded.view(np.uint16)[1::2]
    nothing = np.isnan(values)
    if nothing.any():
        target[nothing] = 0x7FFF


def copied(source: Array, target: Array) -> None:
    """Copy a matrix into another of its shape, in tiles where rows of the one are columns of the
    other, which so stay in the processor's cache."""
    if source.strides[-1] == source.itemsize:
        target[...] = source
        return
    rows, columns = source.shape
    for row in range(0, rows, _TILE_ROWS):
        for column in range(0, columns, _TILE_COLUMNS):
            here = slice(row, row + _TILE_ROWS), slice(column, column + _TILE_COLUMNS)
            target[here] = source[here]
