"""The bound for models by how far their results move (``csl_condition``)."""

import numpy as np
import pytest
from csl_condition import MULTIPLE, conditioned, moved

WANTED = np.array([1.0, -2.0, 0.5])


def judged(error, dtype, spread, length=1):
    """Whether results that are ``error`` apart agree, and how often the model is run again."""
    runs = []

    def again(seed):
        runs.append(seed)
        return [WANTED + spread * (seed % 2)]

    got = WANTED + np.array([0, error, 0])
    found = conditioned([WANTED], [got], dtype, length, again)
    return found.agrees, len(runs)


def test_results_within_the_bound_of_rounding_errors_need_no_other_run():
    assert judged(1e-7, "f32", 0) == (True, 0)


def test_results_may_be_apart_by_a_multiple_of_what_moved_numbers_do():
    spread = 1e-5
    assert judged(0.9 * MULTIPLE * spread, "f32", spread) == (True, 4)
    assert judged(1.1 * MULTIPLE * spread, "f32", spread) == (False, 4)


def test_a_model_that_amplifies_everything_is_no_test():
    assert judged(1.9e-3, "f32", 1.0)[0]
    assert not judged(2.1e-3, "f32", 1.0)[0]


def test_where_a_type_has_few_digits_the_spread_is_the_bound():
    """Sixteen units of bf16 are a tenth of the largest result and no bound."""
    assert judged(0.1, "bf16", 0.001, length=4) == (False, 4)
    assert judged(0.1, "bf16", 0.05, length=4) == (True, 4)


@pytest.mark.parametrize(("dtype", "unit"), [("f32", 2.0**-23), ("f16", 2.0**-10)])
def test_numbers_move_by_at_most_one_unit_of_their_last_place(dtype, unit):
    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    apart = np.abs(moved(numbers, dtype, 1) - numbers) / np.abs(numbers)
    assert np.isclose(apart.max(), unit, rtol=0.5) and (apart == 0).any()
    assert np.array_equal(moved(np.arange(3), dtype, 1), np.arange(3))
