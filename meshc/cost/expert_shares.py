"""The busiest of GPUs that have whole experts, for which the others wait.

Which experts a GPU has, has nothing to do with how many tokens they get: they are taken to be dealt
at random, as many to each GPU.
"""

from __future__ import annotations

from functools import cache
from math import comb, erf, exp, floor, hypot, pi, sqrt
from random import Random

from meshc.cost.expert_coverage import Coverage

_STEPS, _WIDEST = 4000, 10.0
_DEALS = 500


@cache
def most_reached(gpus: int, each: int, reached: int) -> float:
    """The expected number of ``reached`` experts, of ``gpus * each``, that the GPU has which has
    most of them.

    No GPU has more than t where each has one of the C(each, j) choices of j experts, j <= t: the
    coefficient of x^reached in (sum of C(each, j) x^j)^gpus, of C(gpus * each, reached) choices.
    """
    every = comb(gpus * each, reached)
    above = (1 - _within(gpus, each, most, reached) / every for most in range(min(each, reached)))
    return sum(above)


def _within(gpus: int, each: int, most: int, reached: int) -> int:
    """Choices of ``reached`` experts of which no GPU has more than ``most``."""
    one = [comb(each, j) for j in range(most + 1)]
    found = [1]
    for _ in range(gpus):
        longer = [0] * min(len(found) + most, reached + 1)
        for i, ways in enumerate(found):
            for j, more in enumerate(one[: len(longer) - i]):
                longer[i + j] += ways * more
        found = longer
    return found[reached] if reached < len(found) else 0


def busiest_reached(gpus: int, each: int, reached: float) -> float:
    """As :func:`most_reached`, between whole numbers by a line."""
    low = min(floor(reached), gpus * each)
    part = reached - low
    below = most_reached(gpus, each, low)
    return below + part * (most_reached(gpus, each, low + 1) - below) if part else below


def busiest_rows(coverage: Coverage, gpus: int, tokens: float, independent: float) -> float:
    """The expected rows of the GPU that gets most, of ``tokens`` that are routed as ``independent``
    ones, each with as many rows as it has experts.

    Rows of a GPU vary by which experts it has and by what tokens choose. The first is a mean over
    drawn deals, the second taken to be normal, and both are added as independent deviations are.
    """
    each = -(-coverage.experts // gpus)
    mean = tokens * coverage.top_k / gpus
    if gpus == 1:
        return mean
    dealt = tokens * _most_dealt(coverage, gpus) - mean
    chosen = expected_largest(gpus) * sqrt(mean * tokens / independent)
    return min(mean + hypot(dealt, chosen), tokens * min(coverage.top_k, each))


@cache
def _most_dealt(coverage: Coverage, gpus: int) -> float:
    """The expected share of tokens that the experts of one GPU get together, of that which gets
    most."""
    random, shares = Random(0), [*coverage.inclusion]
    found = 0.0
    for _ in range(_DEALS):
        random.shuffle(shares)
        found += max(sum(shares[gpu::gpus]) for gpu in range(gpus))
    return found / _DEALS


@cache
def expected_largest(count: int) -> float:
    """The expected largest of ``count`` independent normal values of mean 0 and deviation 1."""
    step = 2 * _WIDEST / _STEPS
    places = (-_WIDEST + step * i for i in range(_STEPS + 1))
    return step * sum(
        x * count * ((1 + erf(x / sqrt(2))) / 2) ** (count - 1) * exp(-x * x / 2) / sqrt(2 * pi)
        for x in places
    )
