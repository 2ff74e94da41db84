"""Constants of a cost that come nearest to published times, none of them negative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

Constants = Mapping[str, float]
_ROUNDS = 3
"""A cost that is linear but for what hides behind what is fitted by the first; the others go on
from where that got."""


def fitted(
    start: Constants, times: Callable[[Constants], Sequence[float]], published: Sequence[float]
) -> dict[str, float]:
    """The constants whose ``times`` have the least sum of squared relative errors beside those
    ``published``, from ``start`` (all above zero), by Gauss-Newton steps."""
    names, place = tuple(start), np.array([*start.values()], float)
    wanted = np.array(published, float)

    def relative(at: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.array(times(dict(zip(names, map(float, at), strict=True)))) / wanted
        return found

    step = np.array([*start.values()], float)
    for _ in range(_ROUNDS):
        here = relative(place)
        slopes = np.column_stack(
            [
                (relative(place + step * (np.arange(len(names)) == n)) - here) / step[n]
                for n in range(len(names))
            ]
        )
        place = _not_negative(slopes, 1 - here + slopes @ place)
    return dict(zip(names, map(float, place), strict=True))


def _not_negative(slopes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least squares of ``slopes @ x = wanted`` over all x without a negative value: the best of
    those in which some are zero and the others are free."""
    best, least = np.zeros(slopes.shape[1]), float(wanted @ wanted)
    for count in range(1, slopes.shape[1] + 1):
        for free in combinations(range(slopes.shape[1]), count):
            found, *_ = np.linalg.lstsq(slopes[:, free], wanted, rcond=None)
            error = float(np.sum((slopes[:, free] @ found - wanted) ** 2))
            if (found >= 0).all() and error < least:
                best, least = np.zeros(slopes.shape[1]), error
                best[list(free)] = found
    return best
