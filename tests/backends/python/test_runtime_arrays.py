"""Reductions and masks of many short rows against those of one row after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.backends.python.runtime.arrays import hide, reduce_rows

CORES = st.sampled_from([1, 16, 17, 200])


@pytest.mark.parametrize("function", [np.add, np.maximum])
@settings(max_examples=60, deadline=None)
@given(CORES, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_rows_are_reduced_by_themselves(function, cores, rows, lanes, split):
    rng = np.random.default_rng(lanes)
    a = rng.standard_normal((cores, rows, 2 * lanes)).astype(np.float32)
    out = np.full((cores, rows + 1), np.nan, np.float32)[:, 1:]
    shape = (cores, rows, 2, lanes) if split else a.shape
    reduce_rows(function, out, a.reshape(shape))
    wanted = function.reduce(a.astype(np.float64), axis=-1)
    np.testing.assert_allclose(out, wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([1, 30, 400]), st.integers(1, 3), st.integers(1, 8), st.data())
def test_hidden_slots_and_no_others_become_minus_infinity(cores, heads, slots, data):
    rng = np.random.default_rng(cores * slots)
    s = rng.standard_normal((cores, heads, slots)).astype(np.float32)
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    hidden = rng.random((slots, cores)) < share
    hidden[: data.draw(st.integers(0, slots))] = data.draw(st.booleans())
    wanted = s.copy()
    for core in range(cores):
        wanted[core][:, hidden[:, core]] = -np.inf
    hide(s, hidden)
    np.testing.assert_array_equal(s, wanted)
