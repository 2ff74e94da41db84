"""Logical weights in the order in which kernels read them, as 16-bit words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.program import Gathered, Weight
from meshc.ir.affine import parse_expr
from meshc.support.diagnostics import fail

Array = NDArray[Any]


def words(values: Array, dtype: str) -> NDArray[np.uint16]:
    """``values`` rounded to nearest even to ``f16`` or ``bf16``."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values.astype(np.float16)).view(np.uint16)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + (0x7FFF + (bits >> 16 & 1))
    found = np.where(np.isnan(values), np.uint32(0x7FFF0000), rounded) >> 16
    return np.ascontiguousarray(found.astype(np.uint16))


def projections(queries: Array, keys: Array, values: Array, parts: int = 1) -> Array:
    """``[hidden, heads, head]`` and twice ``[hidden, kv_heads, head]`` as ``[kv_heads, rows,
    hidden]``: for each key/value head its query heads, its keys, its values; where there
    is one for all, its dim may be missing. Biases lack hidden and become ``[kv_heads, rows]``. Of
    several ``parts`` of the lanes each has its rows together."""
    lead, head = queries.shape[:-2], queries.shape[-1]
    kv = keys.shape[-2] if keys.ndim == queries.ndim else 1
    joined = np.concatenate(
        [t.reshape(*lead, kv, -1, head) for t in (queries, keys, values)], axis=-2
    )
    split = joined.reshape(*joined.shape[:-1], parts, head // parts)
    rows = np.swapaxes(split, -3, -2).reshape(*lead, kv, -1)
    return np.moveaxis(rows, 0, -1) if lead else rows


def output(weights: Array, kv_heads: int, parts: int = 1) -> Array:
    """``[heads, head, hidden]`` as ``[kv_heads, hidden, attended]``; of several ``parts`` of the
    lanes as ``[kv_heads, parts, hidden, attended / parts]``."""
    heads, head, hidden = weights.shape
    split = weights.reshape(kv_heads, heads // kv_heads, parts, head // parts, hidden)
    return split.transpose(0, 2, 4, 1, 3).reshape(kv_heads, parts, hidden, -1)


def latent_queries(plain: Array, rotary: Array, clusters: int) -> Array:
    """``[hidden, heads, query]`` and ``[hidden, heads, rope]`` as ``[clusters, rows, hidden]``:
    head by head its lanes, the rotary ones last."""
    joined = np.moveaxis(np.concatenate([plain, rotary], axis=-1), 0, -1)
    return joined.reshape(clusters, -1, joined.shape[-1])


def latent_keys(latent: Array, rotary: Array) -> Array:
    """``[hidden, latent]`` and ``[hidden, rope]`` as ``[latent + rope, hidden]``."""
    return np.concatenate([latent, rotary], axis=-1).T


def gated(gates: Array, values: Array) -> Array:
    """Twice ``[width, features]`` as ``[2 features, width]``, gates and values in turn."""
    return np.stack([gates.T, values.T], axis=1).reshape(-1, gates.shape[0])


def in_fragments(matrix: Array) -> Array:
    """``[.., rows, width]`` as ``[.., ceil(rows/16), ceil(width/16), 32, 8]``: blocks of 16 x 16
    in the order in which the lanes of a warp hold them (library/mc_fragments.cuh), the last ones
    filled up with zeros."""
    *lead, rows, width = matrix.shape
    groups, blocks = -(-rows // 16), -(-width // 16)
    full = np.zeros((*lead, 16 * groups, 16 * blocks), matrix.dtype)
    full[..., :rows, :width] = matrix
    # A row is (group, half, g), a place in it (block, q, pair, one).
    split = full.reshape(*lead, groups, 2, 8, blocks, 4, 2, 2)
    n = len(lead)
    order = (*range(n), *(n + axis for axis in (0, 3, 2, 4, 5, 1, 6)))
    return split.transpose(order).reshape(*lead, groups, blocks, 32, 8)


def interleaved(weights: Array, run: int = 0) -> Array:
    """Lanes of heads, the last dim, in the order of interleaved pairs: i and i + n / 2 become 2 i
    and 2 i + 1 in each run of n lanes; ``run`` is n, and 0 where it is all of them."""
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
    "latent_keys": latent_keys,
    # [query, heads, latent] and [latent, heads, value] are turned so that heads come first and the
    # dim that products contract comes last.
    "by_heads": lambda t: t.transpose(1, 2, 0),
}


def packed(weight: Weight, tensors: Mapping[str, Array]) -> NDArray[np.uint16]:
    """The words of ``weight`` for all its layers. Raises KeyError for a tensor that is missing, and
    ``weights-shape-mismatch``."""
    sources = [(name, np.asarray(tensors[name])) for name in weight.sources]
    for (name, tensor), shape in zip(sources, weight.source_shapes, strict=True):
        if tensor.shape != shape:
            words = f"weight '{name}' has shape {list(tensor.shape)}; the program needs"
            fail("weights-shape-mismatch", f"{words} {list(shape)}")
    if not weight.layers:
        return _one(weight, sources)
    found = np.empty((weight.layers, *weight.shape), np.uint16)
    for n in range(weight.layers):
        found[n] = _one(weight, [(name, tensor[n]) for name, tensor in sources])
    return found


def _one(weight: Weight, sources: Sequence[tuple[str, Array]]) -> NDArray[np.uint16]:
    ordered = [interleaved(t, weight.run) if name in weight.paired else t for name, t in sources]
    if weight.pack == "tasks":
        made = for_tasks(weight, ordered)
    elif weight.pack == "output":
        made = output(ordered[0], weight.shape[0], weight.parts)
    elif weight.pack == "projections":
        queries, keys, values = ordered
        made = projections(queries, keys, values, weight.parts)
    elif weight.pack == "latent_queries":
        plain, rotary = ordered
        made = latent_queries(plain, rotary, weight.shape[0])
    else:
        made = _PACKS[weight.pack](*ordered)
    if weight.fragments:
        made = in_fragments(made)
    return words(made.reshape(weight.shape), weight.dtype)
