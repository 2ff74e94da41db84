"""How likely tokens were: natural logarithms of their probabilities by the model, before any
setting of a request, computed in float64 from float32 logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.serving.sampling import most_likely

Array = NDArray[Any]
LEAST = -9999.0
"""What stands for the logarithm of a probability of 0, which JSON cannot spell."""


@dataclass(frozen=True)
class Score:
    """A token, the logarithm of its probability, and the most likely tokens in its place with
    theirs, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score(logits: Array, token: int, count: int) -> Score:
    """The score of ``token`` behind ``logits`` ``[vocab]``, with ``count`` likely ones, of which
    those of equal likelihood stand by their ids."""
    exact = np.asarray(logits, np.float32).astype(np.float64)
    exact -= exact.max()
    found = np.maximum(exact - np.log(np.exp(exact).sum()), LEAST)
    best = np.argsort(-found, kind="stable")[:count]
    return Score(token, float(found[token]), tuple((int(i), float(found[i])) for i in best))


class Chooser:
    """Chooses the tokens of one text: first those that are ``given``, then as ``then`` does. With
    ``top``, ``scores`` has one for each so far, with so many likely tokens."""

    def __init__(
        self, then: Callable[[Array], int], given: Sequence[int] = (), top: int | None = None
    ) -> None:
        self._then, self._given, self._top = then, given, top
        self._count = 0
        self.scores: list[Score] = []

    @property
    def alone(self) -> Callable[[Array], int]:
        """What chooses the same tokens: ``then`` itself where none are given or scored."""
        return self._then if not self._given and self._top is None else self

    def __call__(self, logits: Array) -> int:
        """The next token behind ``logits``. Raises what ``then`` and :func:`most_likely` do."""
        if self._count < len(self._given):
            most_likely(logits)
            token = self._given[self._count]
        else:
            token = self._then(logits)
        self._count += 1
        if self._top is not None:
            self.scores.append(score(logits, token, self._top))
        return token
