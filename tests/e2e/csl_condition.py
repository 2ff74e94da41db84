"""How far results of a model move when its numbers do: the bound for runs that differ by rounding.

The bound of :mod:`meshc.interp.bounds` knows how many roundings lead to a result, not how the model
amplifies them. A drawn layer may answer a change of its input in the last place by a change of its
result in the fourth digit, and where a type has few digits the bound is as large as the results.
Every rounding is a change of some number in its last place, so the interpreter is run again with
all weights and inputs moved by at most one unit of their last place, ``SEEDS`` times: the largest
change of a result is its spread. Results may then be apart by ``MULTIPLE`` times the spread, by one
unit of the last place of the largest at least, and never by more than ``MOST`` of the largest: a
mistake moves results by about their own size, and a model in which that cannot be told fails.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from meshc.interp.bounds import SAFETY, UNIT_ROUNDOFF, Comparison, compare

SEEDS = (1, 2, 3, 4)
MULTIPLE = 4
MOST = {"f32": 1e-3, "f16": 0.25, "bf16": 0.25}
LOOSE = 0.1
"""Part of the largest result beyond which the bound of rounding errors is not taken."""


def moved(array, dtype, seed):
    """``array`` with each number moved by at most one unit of the last place of ``dtype``, up, down
    or not at all; numbers that are no floats stay."""
    array = np.asarray(array)
    if array.dtype.kind != "f":
        return array
    ways = np.random.default_rng(seed).integers(-1, 2, array.shape)
    return (array * (1 + 2 * UNIT_ROUNDOFF[dtype] * ways)).astype(array.dtype)


class Moved(Mapping):
    """``arrays`` with each number moved, the same for a name each time it is asked for."""

    def __init__(self, arrays, dtype, seed):
        self._arrays, self._dtype, self._seed = arrays, dtype, seed

    def __getitem__(self, name):
        return moved(self._arrays[name], self._dtype, [self._seed, *name.encode()])

    def __iter__(self):
        return iter(self._arrays)

    def __len__(self):
        return len(self._arrays)


def conditioned(
    wanted: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    dtype: str,
    length: int,
    again: Callable[[int], Sequence[np.ndarray]],
) -> Comparison:
    """``wanted`` and ``found`` beside the bound of rounding errors, or, where that is loose or they
    are further apart, beside what ``again`` gives: the results for numbers moved by a seed."""
    plain = compare(wanted, found, dtype, length)
    unit = UNIT_ROUNDOFF[dtype]
    tight = SAFETY * length**0.5 * unit <= LOOSE
    if len(wanted) != len(found) or (plain.agrees and tight):
        return plain
    runs = [again(seed) for seed in SEEDS]
    each = []
    for number, (one, got) in enumerate(zip(wanted, found, strict=True)):
        alone = compare([one], [got], dtype, length)
        largest = float(np.abs(one).max(initial=0.0))
        spread = max(compare([one], [run[number]], dtype, length).max_error for run in runs)
        bound = max(2 * unit * largest, min(MULTIPLE * spread, MOST[dtype] * largest))
        each.append(Comparison(alone.max_error, bound, f"{number}: {alone.place}"))
    return max(each, key=lambda one: one.max_error / one.bound if one.bound else one.max_error)
