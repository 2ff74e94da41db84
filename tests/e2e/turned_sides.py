"""Left sides of products that lie in the middle of two numbers of 16 bits: the noise of f32 decides
which of the two a kernel has, and of few of them that may be seen in logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from float64_decoders import Left

_NOISES = 2.0**-22, 2.0**-21, 2.0**-20
"""Of sums of f32, as parts of the largest element of a request; what is nearest comes first."""


@dataclass
class Turned(Left):
    """Left sides of many requests. Those in the middle of two numbers are counted as they are
    ``met``, of each request, and the ones that are ``turned`` are rounded the other way."""

    turned: Sequence[set[int]] = ()
    noise: float = 0.0
    met: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def __post_init__(self) -> None:
        self.met = np.zeros(self.requests, int)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        near, far = self.both(x)
        most = np.abs(x).max(tuple(range(1, x.ndim)), keepdims=True)
        middle = (near != far) & (np.abs(x - (near + far) / 2) <= self.noise * most)
        found = near.copy()
        for b, own in enumerate(middle):
            places = np.argwhere(own)
            for n, place in enumerate(places, self.met[b]):
                if n in self.turned[b]:
                    found[b, *place] = far[b, *place]
            self.met[b] += len(places)
        return found


def nearest(
    step: Callable[[Left], np.ndarray], dtype: str, found: np.ndarray, enough: float
) -> np.ndarray:
    """Logits [requests, words] of a ``step`` with left sides that are rounded so that those of each
    request are near the ones that were ``found``: what lies in the middle of two numbers is turned,
    one after the other, and stays so where that is nearer, until all are near ``enough``."""
    logits = step(Left(dtype, len(found)))
    far = np.abs(found - logits).max(-1)
    plain, wanted = far.copy(), logits
    for noise in _NOISES:
        kept, apart, n, count = [set[int]() for _ in found], plain.copy(), 0, 1
        while n < count and far.max() > enough:
            other = [own | {n} for own in kept]
            left = Turned(dtype, len(found), turned=other, noise=noise)
            logits = step(left)
            now = np.abs(found - logits).max(-1)
            for b in np.flatnonzero(now < apart):
                kept[b], apart[b] = other[b], now[b]
                if now[b] < far[b]:
                    wanted[b], far[b] = logits[b], now[b]
            n, count = n + 1, left.met.max()
    return wanted
