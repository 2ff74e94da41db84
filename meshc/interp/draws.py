"""Indices that are drawn: what scores weigh, what settings leave of them, and the number of a draw.

The meaning of ``graph.draw``, token by token in whole numbers; the host's own is
:mod:`meshc.serving.sampling`, which states it.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from meshc.interp.named import Array

UNIT = 1 << 40
"""What the most likely index weighs."""
_ROOT, _LOG = 2.0**0.5, float(np.log(2.0))


def likelihoods(scores: Array, top: Array, settings: Array) -> Array:
    """What ``scores`` ``[.., n]`` weigh, whose largest is ``top`` ``[..]``."""
    with np.errstate(all="ignore"):
        exponent = scores.astype(np.float64) - top[..., None].astype(np.float64)
        exponent *= settings[..., :1].astype(np.float64)
        heavy = exponent > -41
        exponent = np.where(heavy, exponent, 0.0)
        whole = np.floor(exponent)
        t = (exponent - whole - 0.5) * _LOG
        sums = np.zeros_like(t)
        for n in range(10, -1, -1):
            sums = sums * t + 1.0 / factorial(n)
        return np.where(heavy, np.ldexp(sums * _ROOT, np.int64(whole)), 0.0).astype(np.float32)


def drawn(first: Array, scores: Array, weights: Array, settings: Array, stream: Array) -> Array:
    """The index ``[..]`` that is drawn of each row, or ``first``."""
    found = np.array(first, np.float32)
    for row in np.ndindex(found.shape):
        if settings[row][0] != 0 and np.isfinite(found[row]):
            found[row] = _of_row(scores[row], weights[row], settings[row], stream[row])
    return found


def _of_row(scores: Array, weights: Array, settings: Array, stream: Array) -> float:
    _, most, share, least = map(float, settings)
    own = {i: int(float(w) * UNIT) for i, w in enumerate(weights)}
    if not any(own.values()):
        return float("inf")  # beside an infinite score none weighs anything
    falling = sorted(own, key=lambda i: (-scores[i], i))
    if 0 < most < len(falling):
        last = scores[falling[int(most) - 1]]
        falling = [i for i in falling if scores[i] >= last]
    if share < 1:
        total = sum(own[i] for i in falling)
        wanted, kept = max(total - int((1 - share) * float(total)), 1), 0
        while wanted > 0:
            wanted -= own[falling[kept]]
            kept += 1
        falling = falling[:kept]
    left = sorted(i for i in falling if weights[i] >= np.float32(least))
    target = number(stream) * sum(own[i] for i in left) >> 64
    for index in left:
        target -= own[index]
        if target < 0:
            return float(index)
    return float("inf")


def number(stream: Array) -> int:
    """The 64 bits that the words ``[4]`` of a stream stand for."""
    low, high, second, place = (int(word) % (1 << 32) for word in stream)
    key = np.array([low + (high << 32), second], np.uint64)
    block = np.random.Philox(key=key, counter=place // 4).random_raw(4)
    return int(block[place % 4])
