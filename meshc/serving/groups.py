"""Contiguous groups of layers: how many a prompt takes, and where they are cut.

Layered prefill (arXiv 2510.08055, section 4) reads a prompt by groups of layers, one group in each
iteration. The number of groups plays the part that the chunk size plays in chunked prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

GroupCount = Callable[[int], int]
"""The number of groups for prompt tokens that are read together."""


@dataclass(frozen=True)
class ByLength:
    """One group for each ``tokens`` of a prompt: max(1, ceil(L / tokens)) (paper, section 4.4)."""

    tokens: int = 512

    def __call__(self, tokens: int) -> int:
        return max(1, ceil(tokens / self.tokens))


@dataclass(frozen=True)
class ByDoubling:
    """1, 2, 4, .. groups for up to ``tokens``, twice, four times as many; ``most`` beyond its half.

    With ``most = 16`` and ``tokens = 512``: 4097 tokens and more take 16 groups.
    """

    most: int
    tokens: int = 512

    def __call__(self, tokens: int) -> int:
        count = 1
        while count < self.most and tokens > self.tokens * count:
            count *= 2
        return min(count, self.most)


@dataclass(frozen=True)
class Fixed:
    """The same number of groups for any prompt."""

    count: int

    def __call__(self, tokens: int) -> int:
        return self.count


@dataclass(frozen=True)
class ByLatency:
    """The fewest groups with which an iteration keeps a latency target.

    ``seconds(tokens, groups)`` predicts the longest iteration of a prompt read in ``groups``
    groups; ``most`` is the number of layers, which are taken when no fewer groups will do.
    """

    target_s: float
    most: int
    seconds: Callable[[int, int], float]

    def __call__(self, tokens: int) -> int:
        fits = (n for n in range(1, self.most) if self.seconds(tokens, n) <= self.target_s)
        return next(fits, self.most)


def balanced_groups(costs: Sequence[float], count: int) -> tuple[range, ...]:
    """``count`` contiguous groups of layers of these ``costs``, the dearest group being as cheap as
    it can be; among such divisions, the one whose groups are cut earliest towards equal shares.

    There are never more groups than layers. Equal layers that are no multiple of ``count`` give
    groups whose sizes differ by at most one, larger ones first. Costs are positive.
    """
    layers = len(costs)
    count = max(1, min(count, layers))
    if len(set(costs)) == 1:
        small, more = divmod(layers, count)
        ends = [0]
        for group in range(count):
            ends.append(ends[-1] + small + (group < more))
        return tuple(range(a, b) for a, b in pairwise(ends))
    return _cut(costs, count, _least_bound(costs, count))


def _least_bound(costs: Sequence[float], count: int) -> float:
    """The cost of the dearest group in the best division: dynamic programming over prefixes."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = list(sums)
    for groups in range(2, count + 1):
        best = [
            min((max(best[k], sums[n] - sums[k]) for k in range(groups - 1, n)), default=sums[n])
            for n in range(len(costs) + 1)
        ]
    return best[-1]


def _cut(costs: Sequence[float], count: int, bound: float) -> tuple[range, ...]:
    """Groups within ``bound``, each filled up to an equal share of what is left."""
    limit = bound * (1 + 1e-12)
    # What the layers from each one on need at least, in groups within the limit.
    needs = [_groups_needed(costs[start:], limit) for start in range(len(costs) + 1)]
    found: list[range] = []
    start = 0
    for left in range(count, 0, -1):
        share = sum(costs[start:]) / left
        stop, cost = start, 0.0
        while stop < len(costs) - (left - 1) and cost + costs[stop] <= limit:
            enough = stop > start and cost + costs[stop] / 2 > share
            if enough and needs[stop] <= left - 1:
                break
            cost += costs[stop]
            stop += 1
        found.append(range(start, stop))
        start = stop
    return tuple(found)


def _groups_needed(costs: Sequence[float], limit: float) -> int:
    """The fewest groups within ``limit``: each is filled as far as it goes."""
    groups, cost = 0, limit
    for own in costs:
        if groups == 0 or cost + own > limit:
            groups, cost = groups + 1, 0.0
        cost += own
    return groups
