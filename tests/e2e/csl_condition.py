"""How far results of a model move when its numbers do: no bound of rounding errors can be less.

The bound of :mod:`meshc.interp.bounds` knows how many roundings lead to a result, not how the model
amplifies them: a drawn layer may answer a change of its input in the last place by a change of its
result in the fourth digit. Every rounding is a change of some number in its last place, so the
interpreter is run again with all weights and inputs moved by at most one unit of their last place,
which shows what such changes do: results may be apart by ``MULTIPLE`` times as much. Never by more
than ``MOST`` of the largest number of a result, whatever the model: a mistake moves results by
about their own size, and a model of which that cannot be told is no test.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from meshc.interp.bounds import UNIT_ROUNDOFF, Comparison, compare

SEEDS = (1, 2, 3, 4)
MULTIPLE = 8
MOST = {"f32": 1e-3, "f16": 0.25, "bf16": 0.25}


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
    """``wanted`` and ``found`` held against the bound of rounding errors, or, where they are
    further apart, against what ``again`` gives: the results for numbers moved by a seed."""
    plain = compare(wanted, found, dtype, length)
    if plain.agrees or len(wanted) != len(found):
        return plain
    runs = [again(seed) for seed in SEEDS]
    each = []
    for number, (one, got) in enumerate(zip(wanted, found, strict=True)):
        kept = compare([one], [got], dtype, length)
        spread = max(compare([one], [run[number]], dtype, length).max_error for run in runs)
        most = MOST[dtype] * float(np.abs(one).max(initial=0.0))
        bound = max(kept.bound, min(MULTIPLE * spread, most))
        place = f"{number}: {kept.place}, moved {spread:.2g}"
        each.append(Comparison(kept.max_error, bound, place))
    return max(each, key=lambda one: one.max_error / one.bound if one.bound else one.max_error)
