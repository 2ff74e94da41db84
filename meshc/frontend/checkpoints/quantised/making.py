"""From numbers to codes and scales, where files hold numbers and cores are to hold codes.

Sources: ``quantize_row_q4_0_ref``, ``quantize_row_q4_1_ref`` and ``quantize_row_q8_0_ref`` of ggml;
for int4 the zero points of AWQ and GPTQ, which are such that 0 is a number that a code stands for;
for e4m3 scales such that the largest number of a group is the largest of these floats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from meshc.frontend.checkpoints.tensor_source import Encoded
from meshc.ir.codes import CodeFormat

Made = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Codes [group, ..], scales and perhaps least numbers [..]."""
_MOST = 15
"""The largest code of four bits."""
_MOST_E4M3 = 448
"""The largest number of e4m3."""
_E2M1 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6), np.float32)
"""The numbers of e2m1 from 0 on."""


def quantised(numbers: np.ndarray, counts: tuple[int, ...], form: CodeFormat) -> Encoded:
    """``numbers``, float32, in ``form``, of which there are so many groups along each axis, one for
    each number of a group along most: codes in the shape of the numbers, scales and least numbers
    in that of the groups."""
    within = [whole // count for whole, count in zip(numbers.shape, counts, strict=True)]
    split = numbers.reshape([n for pair in zip(counts, within, strict=True) for n in pair])
    order = (*range(1, split.ndim, 2), *range(0, split.ndim, 2))
    apart = split.transpose(order)
    groups = apart.reshape(form.group, *counts)
    make = _MADE.get(form.name, _int4 if form.whole else _e4m3)
    with np.errstate(all="ignore"):  # a group of zeros has no scale, a weight may be no number
        codes, scales, least = make(groups)
    held = codes.astype(np.uint8 if form.whole else np.float32)
    whole = held.reshape(apart.shape).transpose(np.argsort(order)).reshape(numbers.shape)
    return Encoded(np.ascontiguousarray(whole), scales, least)


def _about_middle(groups: np.ndarray, most: int) -> Made:
    """Codes up to ``most`` about the middle, as ggml's Q4_0 and Q5_0."""
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=0)[None], axis=0)[0]
    zero = np.float32((most + 1) // 2)
    scales = largest / -zero
    codes = np.minimum(np.trunc(groups * _inverse(scales) + zero + np.float32(0.5)), most)
    return codes, _half(scales), None


def _from_least(groups: np.ndarray, most: int) -> Made:
    """Codes up to ``most`` from the least number on, as ggml's Q4_1 and Q5_1."""
    least = groups.min(axis=0)
    scales = (groups.max(axis=0) - least) / np.float32(most)
    codes = np.minimum(np.trunc((groups - least) * _inverse(scales) + np.float32(0.5)), most)
    return codes, _half(scales), _half(least)


def _q8_0(groups: np.ndarray) -> Made:
    scales = np.abs(groups).max(axis=0) / np.float32(127)
    exact = groups * _inverse(scales)
    codes = np.trunc(exact + np.copysign(np.float32(0.5), exact))
    return codes + 128, _half(scales), None


def _int4(groups: np.ndarray) -> Made:
    low, high = np.minimum(groups.min(axis=0), 0), np.maximum(groups.max(axis=0), 0)
    scales = _half((high - low) / np.float32(_MOST))
    zeros = np.clip(np.rint(-low * _inverse(scales)), 0, _MOST)
    codes = np.clip(np.rint(groups * _inverse(scales)) + zeros, 0, _MOST)
    return codes, scales, -zeros * scales


def _e4m3(groups: np.ndarray) -> Made:
    scales = np.abs(groups).max(axis=0) / np.float32(_MOST_E4M3)
    exact = groups * _inverse(scales)
    _, exponents = np.frexp(exact)  # of a fraction of 0.5 to 1; 2^-6 is the least normal number
    steps = np.ldexp(np.float32(1), np.maximum(exponents, -5) - 4)
    codes = np.clip(np.rint(exact / steps) * steps, -_MOST_E4M3, _MOST_E4M3)
    return codes, scales, None


def _mxfp4(groups: np.ndarray) -> Made:
    _, exponents = np.frexp(np.abs(groups).max(axis=0))
    exponents = np.clip(exponents - 3, -127, 127)  # of 4 to 8; 6 is the largest code
    exact = np.abs(np.ldexp(groups, -exponents))
    above = np.clip(np.searchsorted(_E2M1, exact), 1, len(_E2M1) - 1)
    low, high = _E2M1[above - 1], _E2M1[above]
    codes = np.copysign(np.where(exact - low <= high - exact, low, high), groups)
    return codes, np.ldexp(np.float32(1), exponents), None


def _inverse(scales: np.ndarray) -> np.ndarray:
    """1 / ``scales``, and 0 for one that is 0."""
    return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def _half(numbers: np.ndarray) -> np.ndarray:
    """``numbers`` as f16 holds them."""
    return numbers.astype(np.float16).astype(np.float32)


_MADE: dict[str, Callable[[np.ndarray], Made]] = {
    "q4_0": partial(_about_middle, most=15),
    "q4_1": partial(_from_least, most=15),
    "q5_0": partial(_about_middle, most=31),
    "q5_1": partial(_from_least, most=31),
    "q8_0": _q8_0,
    "mxfp4": _mxfp4,
}
