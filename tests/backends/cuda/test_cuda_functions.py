"""Functions of single elements (mc_functions.cuh) in the executor, beside NumPy in float64."""

import numpy as np
import pytest

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

TANH = """#include "mc.cuh"
extern "C" __global__ void __launch_bounds__(32, 1) tanh_of(float* x, int count) {
    for (int i = mc::thread(); i < count; i += mc::threads()) x[i] = mc::tanh(x[i]);
}
MC_EXPORT(tanh_of)
"""


def test_tanh_has_its_last_bits_however_small_it_is():
    """Scores over a large cap are small; on both sides of 1/2, where its form changes."""
    sizes = np.concatenate([np.logspace(-38, 1, 4000), np.linspace(0.4, 0.6, 1000)])
    x = np.concatenate([sizes, -sizes, [0.0, 90.0, np.inf]]).astype(np.float32)
    found, wanted = x.copy(), np.tanh(x.astype(np.float64))
    Library(TANH, toolchain=QUICK).run("tanh_of", Grid(1, 32, 1, 0), [found, np.int32(len(x))])
    assert (np.abs(found - wanted) <= 2.0**-22 * np.abs(wanted)).all()
