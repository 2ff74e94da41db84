"""Words with tags in the executor: what is read of a value, beside the interpreter's rounding."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, modes
from meshc.interp.tasks import Tags

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

BLOCKS = 4
ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1e-45, 1.17549435e-38]


@cache
def library():
    return Library((Path(__file__).parent / "words.cu").read_text(), toolchain=QUICK)


@pytest.mark.parametrize("before", [0, 14, 15, 29])
def test_values_come_back_rounded(before):
    rng = np.random.default_rng(before)
    x = rng.integers(0, 1 << 32, 256 * BLOCKS, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[: len(ENDS)] = ENDS
    wanted = Tags(4, 1, None, np.zeros(1, np.int64)).rounded(x)
    tag = 1 + before % 15
    for mode in modes():
        words, y = np.zeros_like(x), np.zeros((3, len(x)), np.float32)
        library().run(
            "words", Grid(BLOCKS, 256, 1, 128, True), [x, words, y, np.int32(before)], mode
        )
        assert np.array_equal(y, np.tile(wanted, (3, 1)), equal_nan=True)
        assert (words.view(np.uint32) % 16 == tag).all()
