"""Arrays over named dims: alignment by name, and products that contract dims by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dims = tuple[str, ...]


def aligned(array: Array, dims: Dims, target: Sequence[str]) -> Array:
    """``array`` over ``dims`` with its dims in the order of ``target``; extent 1 where it has none.

    Every dim of ``dims`` must be in ``target``.
    """
    order = [dims.index(d) for d in target if d in dims]
    spread = tuple(slice(None) if d in dims else None for d in target)
    return array.transpose(order)[spread]


def contracted(
    left: Array, left_dims: Dims, right: Array, right_dims: Dims, over: Dims, result: Dims
) -> Array:
    """Sum of products over the dims ``over``, with the dims of the result in the order ``result``.

    A dim of both sides that is not in ``over`` is a batch dim.
    """
    batch = [d for d in left_dims if d in right_dims and d not in over]
    rows = [d for d in left_dims if d not in right_dims]
    columns = [d for d in right_dims if d not in left_dims]
    a = _folded(left, left_dims, (batch, rows, over))
    b = _folded(right, right_dims, (batch, over, columns))
    extents = dict(zip(left_dims, left.shape, strict=True))
    extents |= dict(zip(right_dims, right.shape, strict=True))
    natural = (*batch, *rows, *columns)
    product = np.matmul(a, b).reshape([extents[d] for d in natural])
    return aligned(product, natural, result)


def _folded(array: Array, dims: Dims, groups: Sequence[Sequence[str]]) -> Array:
    """``array`` with one axis for each group of dims."""
    order = [dims.index(d) for group in groups for d in group]
    shape = [prod(array.shape[dims.index(d)] for d in group) for group in groups]
    return array.transpose(order).reshape(shape)


def ungrouped(array: Array, dims: Dims, group: Dims, heads: int) -> tuple[Array, Dims]:
    """Grouped-query heads made plain: with ``group = (H, G)`` each of the G entries is repeated
    for the H/G heads it serves (head ``h`` uses entry ``h // (H/G)``)."""
    if not group or group[1] not in dims:
        return array, dims
    axis = dims.index(group[1])
    spread = np.repeat(array, heads // array.shape[axis], axis)
    return spread, (*dims[:axis], group[0], *dims[axis + 1 :])
