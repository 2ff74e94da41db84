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

What is left is divided by its sum. A draw takes one uniform number u of [0, 1) and gives the first
token, by rising ids, up to which the probabilities sum to more than u. All of this is computed in
float64 from float32 logits, so that equal logits and seeds give equal tokens whatever computed
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from meshc.support.diagnostics import fail

Array = NDArray[Any]


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


GREEDY = Sampling()


def most_likely(logits: Array) -> int:
    """The token with the largest of ``logits`` ``[vocab]``, of equal ones the first. Raises
    ``run-refused`` where there is no largest number, or one that is not finite."""
    first = int(logits.argmax())
    if not np.isfinite(logits[first]):
        fail("run-refused", "the logits have no largest number that is finite")
    return first


def probabilities(logits: Array, sampling: Sampling) -> NDArray[np.float64]:
    """The probability of each token ``[vocab]`` by ``sampling``, which is not greedy."""
    scores = np.asarray(logits, np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        scores = (scores - scores.max()) / sampling.temperature
    kept = np.ones(scores.size, bool)
    if 0 < sampling.top_k < scores.size:
        kept = scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k]
    shares = np.where(kept, np.exp(scores), 0.0)
    shares /= shares.sum()
    if sampling.top_p < 1:
        (ids,) = kept.nonzero()
        rising = ids[np.lexsort((-ids, scores[ids]))]
        gone = np.cumsum(shares[rising]) <= 1 - sampling.top_p
        gone[-1] = False
        shares[rising[gone]] = 0.0
        shares /= shares.sum()
    if sampling.min_p > 0:
        shares[shares < sampling.min_p * shares.max()] = 0.0
        shares /= shares.sum()
    return shares


class Sampler:
    """Chooses the tokens of one text, which depend on nothing but their logits, ``sampling``,
    ``seed`` and the ``number`` of the text among those that are asked for at once. Without a seed
    every text is another one."""

    def __init__(
        self, sampling: Sampling = GREEDY, seed: int | None = None, number: int = 0
    ) -> None:
        self._sampling = sampling
        self._random = default_rng(None if seed is None else [seed, number])

    def __call__(self, logits: Array) -> int:
        """The next token behind ``logits`` ``[vocab]``. Raises what :func:`most_likely` does."""
        first = most_likely(logits)
        if self._sampling.temperature == 0:
            return first
        sums = np.cumsum(probabilities(logits, self._sampling))
        place = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        # Rounding may put u at the very end, behind which nothing is likely.
        return int(min(place, np.searchsorted(sums, sums[-1])))
