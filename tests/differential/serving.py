"""What requests share the steps of a compiled decode step: whose tokens, from when on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Turn:
    """What request number ``request`` is given in a step: ``ids`` behind ``cached`` tokens."""

    request: int
    ids: tuple[int, ...]
    cached: int


def turns(seed: int, batch: int, prompt: int, steps: int, vocabulary: int) -> list[list[Turn]]:
    """For each of ``steps`` steps the turns of all requests that are under way.

    The first one reads ``prompt`` tokens in the first step, then one in each. The others begin with
    a single token in any later step, and take one in each from then on. Tokens are random.
    """
    random = np.random.default_rng([seed, 7])
    begins = [0, *(int(random.integers(1, max(steps, 2) + 1)) for _ in range(batch - 1))]
    ids = random.integers(0, vocabulary, (batch, prompt + steps)).tolist()
    found: list[list[Turn]] = [[Turn(0, tuple(ids[0][:prompt]), 0)]]
    for step in range(1, steps):
        under_way = [r for r in range(batch) if begins[r] <= step]
        places = [prompt + step - 1 if r == 0 else step - begins[r] for r in under_way]
        found.append([Turn(r, (ids[r][n],), n) for r, n in zip(under_way, places, strict=True)])
    return found
