"""Weights in fp8: elements in e4m3 (``float8_e4m3fn``), with a sign, 4 bits of exponent and 3 of
fraction, that are multiplied by scales.

The exponent's bias is 7, there is no infinity, and all ones is NaN. Source: Micikevicius et al.,
FP8 Formats for Deep Learning, 2022, table 1.
"""

from __future__ import annotations

import numpy as np


def _element(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (8 + fraction) * 2.0 ** (exponent - 10)


E4M3 = np.array([_element(code) for code in range(256)], np.float32)
"""The number of each code."""


def from_e4m3(rows: np.ndarray) -> np.ndarray:
    """Codes uint8 as float32, without scales."""
    return np.asarray(E4M3[rows])


def scaled(weight: np.ndarray, scales: np.ndarray, block: tuple[int, int] | None) -> np.ndarray:
    """``weight`` float32 [outputs, inputs], in place, times ``scales``: [1, 1], [outputs, 1], or
    one for each ``block`` of outputs and inputs, where the last ones may be cut."""
    if block is None:
        weight *= scales
        return weight
    rows, columns = block
    for at, of_row in enumerate(scales):
        spread = np.repeat(of_row, columns)[: weight.shape[1]]
        weight[at * rows : (at + 1) * rows] *= spread
    return weight
