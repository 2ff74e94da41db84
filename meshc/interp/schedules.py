"""The order in which cores take their turns; a right program gives the same results in each.

``round-robin``: one step each in turn. ``depth-first``: one core until it blocks, then the one that
became ready last. ``random(SEED)``: any ready core, for any number of steps.
"""

from __future__ import annotations

import re
from collections import deque

import numpy as np

from meshc.support.diagnostics import fail

_RANDOM = re.compile(r"random\((\d{1,9})\)\Z")


class Schedule:
    """The cores that can go on. ``burst`` is how many steps the next one taken may do."""

    def __init__(self) -> None:
        self.ready: deque[int] = deque()

    def add(self, core: int) -> None:
        """``core`` can go on."""
        self.ready.append(core)

    def take(self) -> int:
        """The core whose turn it is; it is no longer in the list."""
        return self.ready.popleft()

    def burst(self) -> int:
        """How many steps the core that was taken may do."""
        return 1


class DepthFirst(Schedule):
    """One core as far as it gets."""

    def take(self) -> int:
        return self.ready.pop()

    def burst(self) -> int:
        return 1 << 16


class Random(Schedule):
    """A random ready core for a random while."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)

    def take(self) -> int:
        self.ready.rotate(int(self._random.integers(len(self.ready))))
        return self.ready.popleft()

    def burst(self) -> int:
        return int(self._random.integers(1, 24))


def make_schedule(text: str) -> Schedule:
    """The schedule that ``text`` names. Raises ``interp-schedule``."""
    seeded = _RANDOM.match(text)
    if seeded:
        return Random(int(seeded[1]))
    if text not in ("round-robin", "depth-first"):
        fail(
            "interp-schedule",
            f"there is no schedule '{text}'",
            help="it is round-robin, depth-first or random(SEED)",
        )
    return Schedule() if text == "round-robin" else DepthFirst()
