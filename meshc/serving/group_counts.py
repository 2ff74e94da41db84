"""How many groups of layers a prompt takes; :mod:`meshc.cost.layer_groups` cuts them.

Layered prefill (arXiv 2510.08055, section 4) reads a prompt by groups of layers, one group in each
iteration. The number of groups plays the part that the chunk size plays in chunked prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
