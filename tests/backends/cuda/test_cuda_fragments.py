"""Products on tensor cores in the executor: packing, parts of inputs, joined sums, loads."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_reference import from_kind, to_kind

from meshc.backends.cuda.executor import CXX, QUICK, ExecutorError, Grid, Library, modes
from meshc.backends.cuda.packing import in_fragments

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

WIDTH, WARPS = 208, 4
# Relative to the largest sum: inputs in two parts have 22 and 16 bits, rounded ones 11 and 8.
BOUNDS = {("f16", True): 3e-6, ("bf16", True): 2e-5, ("f16", False): 1e-3, ("bf16", False): 8e-3}


@cache
def library():
    return Library((Path(__file__).parent / "fragments.cu").read_text(), toolchain=QUICK)


@pytest.mark.parametrize(
    ("kind", "batch"),
    [("f16", 1), ("bf16", 1), ("f16", 3), ("bf16", 4), ("f16", 5), ("bf16", 8), ("bf16", 11),
     ("f16", 16)],
)  # fmt: skip
@pytest.mark.parametrize("normed", [True, False])
def test_products_equal_float64_in_all_modes(kind, batch, normed):
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, WIDTH)).astype(np.float32)
    gain = to_kind(rng.standard_normal(WIDTH), kind)
    matrix = to_kind(rng.standard_normal((16, WIDTH)), kind)
    vectors = x.astype(np.float64)
    if normed:
        scale = 1 / np.sqrt((vectors**2).mean(1, keepdims=True) + 1e-5)
        vectors = vectors * scale * from_kind(gain, kind)
    exact = vectors @ from_kind(matrix, kind).astype(np.float64).T
    split = batch <= 4
    shared = (batch * (2 if split else 1) + 16) * WIDTH * 2 + WARPS * batch * 64
    grid = Grid(1, 32 * WARPS, 1, -(-shared // 128) * 128)
    results = set()
    for mode in modes():
        y = np.full((batch, 16), np.nan, np.float32)
        given = [x, gain, in_fragments(matrix), y] if normed else [x, in_fragments(matrix), y]
        name = f"{'product' if normed else 'plain'}_{kind}_{batch}"
        counts = library().run(name, grid, given, mode, lint=True)
        assert counts.shared_load_cycles == counts.shared_loads
        results.add(y.tobytes())
    assert len(results) == 1
    assert np.abs(y - exact).max() < BOUNDS[kind, split] * np.abs(exact).max()


def test_missing_rows_are_zeros_and_no_value_is_lost():
    matrix = np.arange(1, 21 * 48 + 1).astype(np.uint16).reshape(21, 48)
    found = in_fragments(matrix)
    assert found.shape == (2, 3, 32, 8)
    assert sorted(found[found > 0]) == sorted(matrix.ravel())
    # Lane 4 g + q: rows g and g + 8, values 4 q .. 4 q + 3, two of either row at a time.
    lane = found[0, 1, 4 * 3 + 2]
    assert list(lane) == [
        matrix[row, 16 + 8 + i] for pair in (0, 2) for row in (3, 11) for i in (pair, pair + 1)
    ]
    assert (in_fragments(matrix[:, :40])[:, :2] == found[:, :2]).all()
    assert not in_fragments(matrix[:, :40])[:, 2, 2::4].any()


@pytest.mark.parametrize("transposed", [False, True])
def test_loads_of_matrices_are_those_of_the_ptx_isa(transposed):
    rows = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    words = np.zeros((32, 4), np.uint32)
    name = "matrices_transposed" if transposed else "matrices"
    library().run(name, Grid(1, 32, 1, 512), [rows, words])
    seen = rows.swapaxes(1, 2) if transposed else rows
    for lane in range(32):
        for m in range(4):
            low, high = seen[m, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert words[lane, m] == int(low) | int(high) << 16


def test_a_row_outside_of_shared_memory_is_reported():
    with pytest.raises(ExecutorError, match="outside of shared memory"):
        library().run(
            "matrices",
            Grid(1, 32, 1, 256),
            [np.zeros(256, np.uint16), np.zeros(128, np.uint32)],
        )
