"""Which token comes next: the most likely one, or one drawn by temperature, top-k and top-p.

The definitions and their order are those of the logits processors of Hugging Face transformers
(``TemperatureLogitsWarper``, ``TopKLogitsWarper``, ``TopPLogitsWarper``, ``MinPLogitsWarper``):

1. temperature T: scores are divided by T. At 0 the token with the largest score is taken, of equal
   ones the first, and nothing else counts.
2. top-k: tokens whose score is below the k-th largest are left out; those equal to it stay.
3. top-p: of the softmax of what is left, tokens are left out from the least likely one on as long
   as they have at most 1 - p together. The most likely one stays. Of tokens with equal scores those
   with larger ids go first.
4. min-p: of what is left, tokens are left out that are less likely than that share of the most
   likely one.

What is left is divided by its sum. A draw takes a number r of 64 bits and gives the first token, by
rising ids, up to which the probabilities sum to more than r / 2^64.

All of this is exact, so that equal logits and seeds give equal tokens on the host and where a
program draws them itself, whatever order it adds up in. Settings are f32, and so are logits. A
token weighs 2^((score - largest) * scale), where scale is log2(e) / T: computed in f64
(:func:`weights`), rounded to f32 and then down to whole multiples of 2^-40, of which sums have no
rounding. The n-th number of a text, from 0 on, is the n-th that NumPy's ``Philox(key=[seed, number
of the text])`` gives: word n mod 4 of Philox 4x64-10 at the counter n / 4 + 1 (Salmon and others,
SC 2011).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial, log, sqrt
from secrets import randbits
from typing import Any, NoReturn

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from meshc.ir.choices import MOST_CHOICES
from meshc.support.diagnostics import fail

Array = NDArray[Any]

Choose = Callable[[Array], int]
"""The next token behind logits ``[vocab]``. Raises ``MeshcError`` where they give none."""
SEEDS = 1 << 64
"""Seeds are below it."""
_BITS, _LEAST_EXPONENT = 40, -41.0
_LOG_2, _ROOT_2 = log(2.0), sqrt(2.0)
_TERMS = tuple(1 / factorial(n) for n in range(11))
_F32 = np.finfo(np.float32)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: ``temperature`` 0 is greedy, ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0
    leave none out. The values are those that :meth:`check` lets pass."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def check(self) -> None:
        """Raise ``bad-argument`` for a setting that is none."""
        if not 0 <= self.temperature < float("inf"):
            fail("bad-argument", f"the temperature is {self.temperature}, not 0 or more")
        if self.top_k < 0:
            fail("bad-argument", f"top-k is {self.top_k}, not 0 or more")
        if not 0 <= self.top_p <= 1:
            fail("bad-argument", f"top-p is {self.top_p}, not 0 to 1")
        if not 0 <= self.min_p <= 1:
            fail("bad-argument", f"min-p is {self.min_p}, not 0 to 1")

    def numbers(self) -> NDArray[np.float32]:
        """What a program that chooses tokens is given: the scale of differences between scores, 0
        for greedy, then top-k, top-p and min-p. A scale that f32 does not have is its least or
        largest one."""
        scale = 0.0
        if self.temperature > 0:
            scale = min(max(1 / (_LOG_2 * self.temperature), float(_F32.tiny)), float(_F32.max))
        most = min(self.top_k, MOST_CHOICES)
        return np.array([scale, most, self.top_p, self.min_p], np.float32)


GREEDY = Sampling()


def refuse_logits() -> NoReturn:
    """Raise ``run-refused`` for logits that give no token."""
    fail("run-refused", "the logits have no largest number that is finite")


def most_likely(logits: Array) -> int:
    """The token with the largest of ``logits`` ``[vocab]``, of equal ones the first. Raises
    ``run-refused`` where there is no largest number, or one that is not finite."""
    first = int(logits.argmax())
    if not np.isfinite(logits[first]):
        refuse_logits()
    return first


def weights(scores: NDArray[np.float32], scale: np.float32) -> NDArray[np.float32]:
    """``2^((score - largest) * scale)`` of each of ``scores`` ``[vocab]``, whose largest is finite:
    with n whole and f below 1 of the exponent n + f, 2^n times the square root of 2 times e^t, a
    polynomial of degree 10 in t = (f - 1/2) log(2), by Horner's rule. 0 below 2^-41."""
    exponent = (scores.astype(np.float64) - float(scores.max())) * float(scale)
    exponent = np.maximum(exponent, _LEAST_EXPONENT)
    whole = np.floor(exponent)
    t = ((exponent - whole) - 0.5) * _LOG_2
    sums = np.full_like(t, _TERMS[-1])
    for term in _TERMS[-2::-1]:
        sums = sums * t + term
    found = np.ldexp(sums * _ROOT_2, whole.astype(np.int64)).astype(np.float32)
    return np.where(exponent > _LEAST_EXPONENT, found, np.float32(0))


def shares(logits: Array, sampling: Sampling) -> NDArray[np.uint64]:
    """What each token ``[vocab]`` weighs by ``sampling``, which is not greedy, in multiples of
    2^-40; 0 of those that are left out."""
    scores = np.asarray(logits, np.float32)
    scale, top_k, top_p, min_p = sampling.numbers()
    weight = weights(scores, scale)
    found = np.floor(np.ldexp(weight.astype(np.float64), _BITS)).astype(np.uint64)
    kept = np.ones(scores.size, bool)
    if 0 < top_k < scores.size:
        kept = scores >= np.partition(scores, -int(top_k))[-int(top_k)]
        found[~kept] = 0
    if top_p < 1:
        (ids,) = kept.nonzero()
        rising = ids[np.lexsort((-ids, scores[ids]))]
        sums = np.cumsum(found[rising])
        gone = sums <= np.uint64((1 - float(top_p)) * float(sums[-1]))
        gone[-1] = False
        found[rising[gone]] = 0
    found[weight < min_p] = 0
    return found


def probabilities(logits: Array, sampling: Sampling) -> NDArray[np.float64]:
    """The probability of each token ``[vocab]`` by ``sampling``, which is not greedy."""
    found = shares(logits, sampling)
    return found / float(found.sum())


class Sampler:
    """Chooses the tokens of one text, which depend on nothing but their logits, ``sampling``,
    ``seed`` and the ``number`` of the text among those that are asked for at once. Without a seed
    every text is another one."""

    def __init__(
        self, sampling: Sampling = GREEDY, seed: int | None = None, number: int = 0
    ) -> None:
        self.sampling = sampling
        self.key = (randbits(64) if seed is None else seed, number)
        self._random = Philox(key=np.array(self.key, np.uint64))
        self._taken = 0

    def __call__(self, logits: Array) -> int:
        """The next token behind ``logits`` ``[vocab]``. Raises what :func:`most_likely` does."""
        first = most_likely(logits)
        if self.sampling.temperature == 0:
            return first
        sums = np.cumsum(shares(logits, self.sampling))
        drawn = self._number() * int(sums[-1]) >> 64
        return int(np.searchsorted(sums, np.uint64(drawn), side="right"))

    @property
    def draw(self) -> tuple[Array, Array]:
        """What a program is told that chooses the next token as this does: f32 [4], the numbers of
        the sampling, and u32 [4], the seed in two words, the number of the text and how many
        numbers it has taken."""
        seed, text = self.key
        words = (seed % (1 << 32), seed >> 32, text, self._taken)
        return self.sampling.numbers(), np.array(words, np.uint32)

    def pass_over(self) -> None:
        """Go on behind a token that a program has chosen by :attr:`draw`."""
        if self.sampling.temperature != 0:
            self._number()

    def _number(self) -> int:
        """The next number of the text."""
        self._taken += 1
        return int(self._random.random_raw())
