"""How many experts of a layer are loaded: the share that at least one token is routed to.

Routing is skewed: expert i of E is chosen with a weight of (128 i / E + offset)^-exponent (the law
of Zipf and Mandelbrot over ranks; uniform routing is 22 % off measured coverage). A token takes
``top_k`` of them, so that the expected share after n independent tokens is the mean over experts of
1 - (1 - q_i)^n with inclusion probabilities q_i = min(1, c w_i) that add up to ``top_k``.

Tokens of one prompt are routed alike. A chunk of n of them counts as ``chunk_scale *
n^chunk_power`` independent ones, and never as more than n.

Calibrated on arXiv 2510.08055: the law on Table 1 (decode batches of 1, 4, 16, 64 and 256 requests,
exponents up to 6, beyond which the fit hardly changes; 2, 8, 32, 128 and 512 are held out), the
chunk on Figure 2 (512, 2048 and 8192 tokens; 1024 and 4096 are held out). Both were measured on
Qwen3-30B-A3B; other models are assumed to be skewed alike over the ranks of their experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import pow

EXPONENT = 6.0
OFFSET = 116.0
CHUNK_SCALE = 5.42
CHUNK_POWER = 0.485

_RANKS = 128
_TABLED = 4096


@dataclass(frozen=True)
class Coverage:
    """Expected coverage of ``experts`` of which every token takes ``top_k``."""

    experts: int
    top_k: int
    exponent: float = EXPONENT
    offset: float = OFFSET

    @cached_property
    def inclusion(self) -> tuple[float, ...]:
        """The probability that a token takes each expert, the likeliest first."""
        step = _RANKS / self.experts
        weights = [(step * i + self.offset) ** -self.exponent for i in range(self.experts)]
        certain = 0
        while True:  # experts whose share exceeds one are certain; the others share what is left
            scale = (self.top_k - certain) / sum(weights[certain:])
            if certain == self.top_k or scale * weights[certain] <= 1:
                return (1.0,) * certain + tuple(scale * w for w in weights[certain:])
            certain += 1

    def of(self, tokens: float) -> float:
        """Coverage by ``tokens`` independent tokens, between 0 and 1."""
        if tokens >= _TABLED:
            return self._exact(tokens)
        low = int(tokens)
        table = self._table
        return table[low] + (tokens - low) * (table[low + 1] - table[low])

    def _exact(self, tokens: float) -> float:
        return 1 - sum(pow(1 - q, tokens) for q in self.inclusion) / self.experts

    @cached_property
    def _table(self) -> tuple[float, ...]:
        misses = [1.0] * self.experts
        found = []
        for _ in range(_TABLED + 1):
            found.append(1 - sum(misses) / self.experts)
            misses = [m * (1 - q) for m, q in zip(misses, self.inclusion, strict=True)]
        return tuple(found)


@cache
def coverage_of(experts: int, top_k: int) -> Coverage:
    """One table of coverage for all layers alike."""
    return Coverage(experts, top_k)


def independent_tokens(chunk: int, scale: float = CHUNK_SCALE, power: float = CHUNK_POWER) -> float:
    """How many independently routed tokens ``chunk`` tokens of one prompt count as."""
    return min(float(chunk), scale * pow(float(chunk), power))
