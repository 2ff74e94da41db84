"""Arithmetic on many short rows, ``[cores, .., row]``, whose loops NumPy is slow to begin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SHORT_ROW = 32  # elements up to which rows are reduced all at once
_MANY_ROWS = 64  # from which on that pays, and by slot masking one of all rows


def reduce_rows(function: np.ufunc, out: Array, a: Array) -> None:
    """``out[..] = function`` over the trailing dims of ``a`` that ``out`` lacks.

    Many short rows are turned first, so that NumPy reduces all of them at once instead of one
    after the other; the elements of a row are taken in order either way.
    """
    rows = a.reshape((*out.shape, -1))
    if rows.shape[-1] > _SHORT_ROW or out.size < _MANY_ROWS:
        function.reduce(rows, axis=-1, out=out)
        return
    turned = np.ascontiguousarray(rows.transpose(rows.ndim - 1, *range(rows.ndim - 1)))
    np.copyto(out, function.reduce(turned, axis=0))


def hide(s: Array, hidden: Array) -> None:
    """``s[core, .., j] = -inf`` where ``hidden[j, core]``."""
    slots, rows = s.shape[-1], s.size // max(s.shape[-1], 1)
    between = (1,) * (s.ndim - 2)
    if _MANY_ROWS * slots > rows:
        where = hidden.T.reshape((len(s), *between, slots))
        np.copyto(s, np.float32(-np.inf), where=where)
        return
    on_every: Array = np.logical_and.reduce(hidden, axis=1)
    on_some: Array = np.logical_or.reduce(hidden, axis=1)
    for slot in range(slots):
        if on_every[slot]:
            s[..., slot] = -np.inf
        elif on_some[slot]:
            where = hidden[slot].reshape((len(s), *between))
            np.copyto(s[..., slot], np.float32(-np.inf), where=where)
