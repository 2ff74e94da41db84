"""Logical weights in the order in which kernels read them, as 16-bit words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.program import Gathered, Weight
from meshc.ir.affine import parse_expr
from meshc.support.diagnostics import fail

Array = NDArray[Any]
_RUN = 1 << 16
_TILE_ROWS, _TILE_COLUMNS = 64, 256
_GROUPS = 4
"""What is done at once: elements whose type is changed, a tile of a matrix whose rows become
columns, groups of 16 rows that become fragments."""


def words(values: Array, dtype: str) -> NDArray[np.uint16]:
    """``values`` rounded to nearest even to ``f16`` or ``bf16``, of their shape."""
    given = np.asarray(values)
    found = np.empty(given.shape, np.uint16)
    rounded = _f16_words if dtype == "f16" else _bf16_words
    for source, target in zip(_runs(given), _runs(found), strict=True):
        rounded(source, target)
    return found


def _runs(values: Array) -> Iterator[Array]:
    """``values`` as vectors that a processor's cache holds; those of an array that does not lie in
    order are copies."""
    flat = values.reshape(-1)
    return (flat[at : at + _RUN] for at in range(0, flat.size, _RUN))


def _f16_words(values: Array, target: NDArray[np.uint16]) -> None:
    with np.errstate(over="ignore"):
        target.view(np.float16)[:] = values


def _bf16_words(values: Array, target: NDArray[np.uint16]) -> None:
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


def projections(queries: Array, keys: Array, values: Array) -> Array:
    """``[hidden, heads, head]`` and twice ``[hidden, kv_heads, head]`` as ``[kv_heads, rows,
    hidden]``: for each key/value head its query heads, its keys, its values; where there
    is one for all, its dim may be missing. Biases lack hidden and become ``[kv_heads, rows]``."""
    lead, head = queries.shape[:-2], queries.shape[-1]
    kv = keys.shape[-2] if keys.ndim == queries.ndim else 1
    joined = np.concatenate(
        [t.reshape(*lead, kv, -1, head) for t in (queries, keys, values)], axis=-2
    )
    rows = joined.reshape(*lead, kv, -1)
    return np.moveaxis(rows, 0, -1) if lead else rows


def output(weights: Array, kv_heads: int) -> Array:
    """``[heads, head, hidden]`` as ``[kv_heads, hidden, attended]``."""
    heads, head, hidden = weights.shape
    split = weights.reshape(kv_heads, heads // kv_heads * head, hidden)
    return split.transpose(0, 2, 1)


def gated(gates: Array, values: Array) -> Array:
    """Twice ``[width, features]`` as ``[2 features, width]``, gates and values in turn; of biases
    ``[features]`` twice."""
    if gates.ndim == 1:
        return np.stack([gates, values], axis=1).reshape(-1)
    width, features = gates.shape
    found = np.empty((features, 2, width), gates.dtype)
    for turn, tensor in enumerate((gates, values)):
        copied(tensor.T, found[:, turn])
    return found.reshape(-1, width)


def in_fragments(matrix: Array) -> Array:
    """``[.., rows, width]`` of 16-bit words as ``[.., ceil(rows/16), ceil(width/16), 32, 8]``:
    blocks of 16 x 16 in the order in which the lanes of a warp hold them
    (library/mc_fragments.cuh), the last ones filled up with zeros."""
    *lead, rows, width = matrix.shape
    groups, blocks = -(-rows // 16), -(-width // 16)
    found = np.empty((*lead, groups, blocks, 32, 8), matrix.dtype)
    for index in np.ndindex(*lead):
        for first in range(0, groups, _GROUPS):
            some = matrix[index][16 * first : 16 * (first + _GROUPS)]
            _fragments_of(some, found[index][first : first + _GROUPS])
    return found


def _fragments_of(rows: Array, target: Array) -> None:
    """The fragments of a few groups of rows."""
    groups, blocks = target.shape[:2]
    slab = np.empty((16 * groups, 16 * blocks), rows.dtype)
    count, width = rows.shape
    slab[count:], slab[:, width:] = 0, 0
    copied(rows, slab[:count, :width])
    # A row is (group, half, g), a place in it (block, q, pair, one); two words are moved at once.
    split = slab.view(np.uint32).reshape(groups, 2, 8, blocks, 4, 2)
    lanes = target.view(np.uint32).reshape(groups, blocks, 8, 4, 2, 2)
    for half, q, pair in np.ndindex(2, 4, 2):
        lanes[:, :, :, q, pair, half] = split[:, half, :, :, q, pair].swapaxes(1, 2)


def interleaved(weights: Array, run: int = 0) -> Array:
    """Lanes of heads, the last dim, in the order of interleaved pairs: i and i + n / 2 become 2 i
    and 2 i + 1 in each run of n lanes; ``run`` is n, and 0 where it is all of them. Lanes behind
    one run, fewer than it has, are a run of their own."""
    if run and weights.shape[-1] % run:
        parts = [interleaved(weights[..., :run]), interleaved(weights[..., run:])]
        return np.concatenate(parts, axis=-1)
    runs = weights.reshape(*weights.shape[:-1], -1, 2, (run or weights.shape[-1]) // 2)
    return np.ascontiguousarray(runs.swapaxes(-2, -1)).reshape(weights.shape)


def gathered(tensor: Array, how: Gathered) -> Array:
    """``tensor`` along its lanes (:class:`meshc.backends.cuda.program.Gathered`), zeros outside.

    Raises ValueError where an expression is none in a single lane.
    """
    elements = [parse_expr(text) for text in how.element]
    axes: dict[str, list[int]] = {lane: [] for lane in how.lanes}
    for axis, element in enumerate(elements):
        (lane,) = element.free_vars or {how.lanes[0]}
        axes[lane].append(axis)
    found = tensor.transpose([axis for lane in how.lanes for axis in axes[lane]])
    for number, (lane, extent) in enumerate(zip(how.lanes, how.extents, strict=True)):
        own = axes[lane]
        sizes = [tensor.shape[axis] for axis in own]
        index, inside = np.zeros(extent, np.int64), np.ones(extent, bool)
        for axis, size in zip(own, sizes, strict=True):
            at = np.broadcast_to(elements[axis].evaluate({lane: np.arange(extent)}), (extent,))
            inside &= (at >= 0) & (at < size)
            index = index * size + at
        found = found.reshape(
            *found.shape[:number], math.prod(sizes), *found.shape[number + len(own) :]
        )
        if not (inside.all() and np.array_equal(index, np.arange(found.shape[number]))):
            found = np.take(found, np.where(inside, index, 0), number)
            found[(slice(None),) * number + (~inside,)] = 0
    return found


def for_tasks(weight: Weight, tensors: Sequence[Array]) -> Array:
    """``tensors``, gathered; a group of a matrix has ``weight.rows`` rows of each, in turn, and as
    many of zeros as sixteen lack."""
    parts = [gathered(t, how) for t, how in zip(tensors, weight.gathered, strict=True)]
    if not weight.fragments:
        return parts[0]
    *lead, rows, width = parts[0].shape
    groups = np.stack(parts, -2).reshape(*lead, rows // weight.rows, -1, width)
    missing = [(0, 0)] * len(lead) + [(0, 0), (0, 16 - groups.shape[-2]), (0, 0)]
    return np.pad(groups, missing).reshape(*lead, -1, width)


_PACKS: dict[str, Callable[..., Array]] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.T,
    "gated": gated,
    "projections": projections,
}


def packed(weight: Weight, tensors: Mapping[str, Array]) -> NDArray[np.uint16]:
    """The words of ``weight`` for all its layers. Raises KeyError for a tensor that is missing, and
    ``weights-shape-mismatch``."""
    sources = [np.asarray(tensors[name]) for name in weight.sources]
    for name, tensor, shape in zip(weight.sources, sources, weight.source_shapes, strict=True):
        if tensor.shape != shape:
            text = f"weight '{name}' has shape {list(tensor.shape)}; the program needs"
            fail("weights-shape-mismatch", f"{text} {list(shape)}")
    if not weight.layers:
        return _one(weight, sources)
    found = np.empty((weight.layers, *weight.shape), np.uint16)

    def pack(layer: int) -> None:
        found[layer] = _one(weight, [tensor[layer] for tensor in sources])

    with ThreadPoolExecutor(min(weight.layers, os.cpu_count() or 1)) as threads:
        for _ in threads.map(pack, range(weight.layers)):
            pass
    return found


def _one(weight: Weight, sources: Sequence[Array]) -> NDArray[np.uint16]:
    """The words of one layer, or of what all layers share; nothing but words is moved."""
    rounded = [words(tensor, weight.dtype) for tensor in sources]
    ordered = [
        interleaved(tensor, weight.run) if name in weight.paired else tensor
        for name, tensor in zip(weight.sources, rounded, strict=True)
    ]
    if weight.pack == "tasks":
        made = for_tasks(weight, ordered)
    elif weight.pack == "output":
        made = output(ordered[0], weight.shape[0])
    else:
        made = _PACKS[weight.pack](*ordered)
    if weight.fragments:
        made = in_fragments(made)
    return made.reshape(weight.shape)
