"""Left sides of products that lie in the middle of two numbers of 16 bits: the noise of f32 decides
which of the two a kernel has, and of few of them that may be seen in logits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from float64_decoders import Left

NOISES = 2.0**-22, 2.0**-21, 2.0**-20
"""Of sums of f32, as parts of the largest element of a request; what is nearest comes first."""
OF_LARGE_SCORES = 2.0**-18, 2.0**-16
"""Of sums behind exponentials of scores of up to a hundred, of which noise is as much more."""
_DEEP, _WIDE, _MOST = 4, 4, 800
"""Elements that are turned at once, choices of them that are kept, and those that are tried."""

Measures = tuple[int, float]


@dataclass
class Turned(Left):
    """Left sides of one request of many. Elements in the middle of two numbers are counted as they
    are ``met``, and those that are ``turned`` are rounded the other way."""

    turned: Collection[int] = ()
    noise: float = 0.0
    met: int = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        near, far = self.both(x)
        middle = np.abs(x - (near + far) / 2) <= self.noise * np.abs(x).max()
        found, places = near.copy(), np.argwhere((near != far) & middle)
        for n, place in enumerate(places, self.met):
            if n in self.turned:
                found[*place] = far[*place]
        self.met += len(places)
        return found


def nearest(
    measure: Callable[[Left], Measures],
    dtype: str,
    requests: int,
    enough: float,
    noises: Sequence[float] = NOISES,
) -> float:
    """How far a request is from what was found with left sides, in a step of so many ``requests``,
    of which some are rounded the other way. A ``measure`` of left sides says how many elements of
    rows differ and how far the request is. Choices of which fewest elements differ grow by one more
    left side in the middle of two numbers, until one is near ``enough``."""
    _, best = measure(Left(dtype, requests))
    for noise in noises:
        kept: list[tuple[Measures, tuple[int, ...], int]] = []
        fresh, seen = {()}, {()}
        for _ in range(_DEEP + 1):
            tried = []
            for own in fresh:
                left = Turned(dtype, requests, turned=own, noise=noise)
                tried.append((measure(left), own, left.met))
            kept = sorted(tried)[:_WIDE]
            best = min(best, *(far for (_, far), _, _ in kept), float("inf"))
            more = ((own, n) for _, own, met in kept for n in range(met))
            fresh = {tuple(sorted({*own} ^ {n})) for own, n in more} - seen
            seen |= fresh
            if best <= enough:
                return best
            if len(seen) > _MOST:
                break
    return best
