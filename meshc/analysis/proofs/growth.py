"""How a count grows with the side P of a mesh, read off counts at several P.

Each law ``c0 + c1 g(P)`` of a short list is fitted by least squares of relative errors; the law
that leaves the least is the answer. Counts of compiled programs follow such laws exactly where
groups and tiles are even, so the choice is among residuals of which one is (nearly) zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2

import numpy as np

LAWS: dict[str, Callable[[float], float]] = {
    "1/P^2": lambda p: p**-2,
    "1/P": lambda p: 1 / p,
    "log P": log2,
    "P^(1/4)": lambda p: p ** (1 / 4),
    "P^(1/3)": lambda p: p ** (1 / 3),
    "P^(1/2)": lambda p: p ** (1 / 2),
    "P": lambda p: p,
    "P^2": lambda p: p**2,
}
ORDER = ("1/P^2", "1/P", "1", *list(LAWS)[2:])


def growth(counts: Mapping[int, float]) -> str:
    """The law of ``counts`` by P: ``1`` for constant ones, else a name of ``LAWS``.

    ``counts`` are positive, of at least three P.
    """
    values = np.array(list(counts.values()), float)
    if np.ptp(values) == 0:
        return "1"
    residuals = {}
    for name, law in LAWS.items():
        rows = np.array([[1.0, law(p)] for p in counts]) / values[:, None]
        found, *_ = np.linalg.lstsq(rows, np.ones(len(values)), rcond=None)
        if found[1] > 0:
            residuals[name] = float(np.abs(rows @ found - 1).max())
    return min(residuals, key=residuals.__getitem__)


def faster(one: str, other: str) -> bool:
    """Whether law ``one`` grows faster than law ``other``."""
    return ORDER.index(one) > ORDER.index(other)


def latency(hops: str, stages: str) -> str:
    """Laws of hops (a) and routing stages (b) as one term, such as ``aP + b``."""
    terms = [letter if law == "1" else f"{letter} {law}" for letter, law in
             (("a", hops), ("b", stages))]  # fmt: skip
    return " + ".join(terms)
