"""What cores compute for rows that gates send to their experts, on arrays ``[cores, rows.., ..]``.

A gate that is not zero sends its row. Of rows and experts that have nothing to do with each other
nothing is read, so that weights of experts without rows cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def dispatch(out: Array, a: Array, gates: Array) -> None:
    """out[.., x, :] = a[.., :] where gates[.., x] is not 0, else 0"""
    np.copyto(out, 0)
    np.copyto(out, a[..., None, :], where=(gates != 0)[..., None])


def expert_gemm(out: Array, a: Array, b: Array, gates: Array) -> None:
    """out[.., x, :] = a[.., x, :] b[:, x, :] for the rows that an expert is sent, else 0"""
    np.copyto(out, 0)
    routed = gates != 0
    by_expert = routed.any(tuple(range(1, routed.ndim - 1)))
    for core, expert in np.argwhere(by_expert):
        rows = routed[core, ..., expert]
        out[core, rows, expert] = a[core, rows, expert] @ b[core, :, expert]


def combine(out: Array, a: Array, gates: Array) -> None:
    """out[.., :] = sum of gates[.., x] * a[.., x, :] over the x whose gate is not 0"""
    weighted = np.where((gates != 0)[..., None], a * gates[..., None], 0)
    np.sum(weighted, axis=-2, out=out)
