"""How near to each other what is chosen by its size, and what is not, were in a run: where they
nearly tie, rounding may turn a choice, and results of right programs differ by any amount."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from meshc.interp.named import Array


@dataclass
class Choices:
    """The smallest distance of something chosen to something left, over the largest of the values
    that it was chosen by; infinity where nothing was chosen."""

    nearest: float = float("inf")


_watching: ContextVar[Choices | None] = ContextVar("choices", default=None)


@contextmanager
def watched_choices() -> Iterator[Choices]:
    """What the runs inside choose."""
    found = Choices()
    token = _watching.set(found)
    try:
        yield found
    finally:
        _watching.reset(token)


def chosen(values: Array, count: int) -> None:
    """Note that the largest ``count`` of the last dim of ``values`` are chosen."""
    seen = _watching.get()
    if seen is None or not 0 < count < values.shape[-1]:
        return
    ordered = np.sort(values, -1)
    with np.errstate(invalid="ignore"):  # of two that are left out for good
        apart = ordered[..., -count] - ordered[..., -count - 1]
    size = np.abs(np.where(np.isfinite(values), values, 0)).max(-1)
    known = np.isfinite(apart) & (size > 0)
    nearest = (apart[known] / size[known]).min(initial=float("inf"))
    seen.nearest = min(seen.nearest, float(nearest))
