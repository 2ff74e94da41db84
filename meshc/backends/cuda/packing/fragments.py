"""Matrices in the order in which the lanes of a warp hold them (library/mc_fragments.cuh).

A block of 16 x 16 words is 32 lanes of 8: lane 4 g + q has words 4 q to 4 q + 3 of rows g and
g + 8, two of the one and two of the other in turn. So a pair of rows gives 16 pairs of words that
alternate. A C compiler makes of that what reads each word once; without one NumPy does it.
"""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.support.native import BuildError, Toolchain, opened

Array = NDArray[Any]
Words = NDArray[np.uint16]
SIDE = 16
"""Rows of a block, and words of a row in it."""
_CONVERSIONS = (*("", "f16", "bf16", "f16 of f32", "bf16 of f32", "f16 of e4m3", "bf16 of e4m3"),)
"""Conversions of words, floats and codes, by the numbers that the C text has for them."""
_SOURCE = Path(__file__).with_suffix(".c")
_C = Toolchain("C", "CC", ("cc", "gcc", "clang"), ("-std=c11", "-O3", "-fPIC"))


def in_fragments(matrix: Array) -> Array:
    """``[.., rows, width]`` of 16-bit words as ``[.., ceil(rows/16), ceil(width/16), 32, 8]``, the
    last blocks filled up with zeros."""
    *lead, rows, width = matrix.shape
    groups, blocks = -(-rows // SIDE), -(-width // SIDE)
    slab = np.zeros((*lead, groups * SIDE, blocks * SIDE), np.uint16)
    slab[..., :rows, :width] = matrix.view(np.uint16)
    found = np.empty((*lead, groups, blocks, 32, 8), np.uint16)
    for index in np.ndindex(*lead):
        fragments_of(slab[index], found[index].reshape(-1))
    return found.view(matrix.dtype)


def fragments_of(slab: Words, target: Words) -> None:
    """Write the fragments of whole blocks, ``[rows, width]``, to ``target``."""
    rows = slab.ctypes.data + np.arange(len(slab), dtype=np.uint64) * np.uint64(slab.strides[0])
    if slab.strides[1] == slab.itemsize and fragments_at(rows, slab.shape[1], target):
        return
    groups, blocks = len(slab) // SIDE, slab.shape[1] // SIDE
    pairs = slab.view(np.uint32).reshape(groups, 2, 8, blocks, 8)
    lanes = target.view(np.uint32).reshape(groups, blocks, 8, 8, 2)
    for half in range(2):
        lanes[..., half] = pairs[:, half].swapaxes(1, 2)


@dataclass(frozen=True)
class Scales:
    """Where the scales of each of many rows lie, and how many columns of a row have one."""

    at: NDArray[np.uint64]
    group: int


def fragments_at(
    rows: NDArray[np.uint64],
    width: int,
    target: Words,
    asked: str = "",
    scales: Scales | None = None,
) -> bool:
    """Write the fragments of rows at these addresses, each ``width`` words long, to ``target``, as
    words of the type that is ``asked`` for where they are of the other one, or with ``of f32``
    behind it floats of 32 bits, or with ``of e4m3`` codes that have ``scales``; whether there is a
    compiler for what does so, and a processor that converts them."""
    function = _compiled()
    if function is None:
        return False
    at = np.ascontiguousarray(rows, np.uint64)
    scaled = np.ascontiguousarray(at if scales is None else scales.at, np.uint64)
    of_scale = 1 if scales is None else scales.group // SIDE
    groups, blocks = len(rows) // SIDE, width // SIDE
    matrix = _Matrix(at.ctypes.data, scaled.ctypes.data, of_scale, groups, blocks)
    return bool(function(matrix, _CONVERSIONS.index(asked), target.ctypes.data))


class _Matrix(ct.Structure):
    """As in the C text."""

    _fields_ = (
        ("rows", ct.c_void_p),
        ("scales", ct.c_void_p),
        ("of_scale", ct.c_size_t),
        ("groups", ct.c_size_t),
        ("blocks", ct.c_size_t),
    )


@cache
def _compiled() -> Any:
    """The function in C, None without a compiler."""
    return compiled(_SOURCE, "mc_fragments", (ct.POINTER(_Matrix), ct.c_int, ct.c_void_p))


def compiled(source: Path, name: str, takes: tuple[Any, ...]) -> Any:
    """The function ``name`` of a C text, which takes such arguments; None without a compiler."""
    try:
        built = _C.build({source.name: source.read_text(encoding="utf-8")}, {}, "cuda-packing")
        function = getattr(opened(built), name)
    except BuildError:
        return None
    function.argtypes = takes
    return function
