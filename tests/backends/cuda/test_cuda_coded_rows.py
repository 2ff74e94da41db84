"""Rows of caches as floats of eight bits with a scale each: what a warp makes of rows, where it puts
that, and what tensor cores are given, beside a table of all such floats."""

# Lines of the library are as long as they are.
# ruff: noqa: E501

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from coded_caches import EXPONENTS, FLOATS, coded, kept, numbers
from kernel_reference import from_kind
from reduced import only

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, headers
from meshc.interp.rounding import coded_rows

needs_compiler = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
LARGEST = 448 * 2.0 ** EXPONENTS[-1]
GRID = Grid(1, 32, 1, 128)


@cache
def library(behind=False):
    """The kernels, of rows that have their scales ``behind`` them if so."""
    head = "#define MC_SCALES_BEHIND\n" if behind else ""
    return Library(head + (Path(__file__).parent / "coded_rows.cu").read_text(), toolchain=QUICK)


def rows_of(lanes, seed):
    """Sixteen rows of numbers of all sizes: ties and their neighbours, the largest of each scale and
    a little more, numbers below the normal ones, zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((16, lanes)) * 2.0 ** rng.integers(-30, 12, (16, 1))
    x[1] *= 2.0 ** rng.integers(-20, 3, lanes)
    halves = (FLOATS[1:] + FLOATS[:-1]) / 2
    x[2] = rng.choice(halves, lanes) * rng.choice([-1, 1], lanes)
    x[3], x[4], x[5] = np.nextafter(np.float32(x[2]), [[0], [9e9], [-9e9]])
    x[6, 0], x[7, 0], x[8, 0], x[9, 0] = LARGEST, 448, np.nextafter(np.float32(448), 999), 449
    x[10], x[11] = 0, 2.0**-149
    x[12] = -LARGEST
    x[6:10, 1:] = x[6:10, 1:] / np.abs(x[6:10]).max() * 400
    return np.clip(x, -LARGEST, LARGEST).astype(np.float32)


def check(lanes, coding):
    """What ``coding`` makes of rows is what a table of all floats says."""
    x, first = rows_of(lanes, lanes), 32
    bytes_of = np.full(16 * (lanes + 1), 0xAA, np.uint8)
    y = np.full((2, 16, lanes), np.nan, np.float32)
    coding.run(f"code_{lanes}", GRID, [x, np.int32(first), bytes_of, y])
    codes, scales = coded(x.astype(np.float64))
    found = bytes_of[16:].reshape(16, lanes)
    assert (np.sort(found) == np.sort(codes)).all(), "chunks are exchanged, no more"
    assert (bytes_of[:16] == scales)[np.arange(16) != 10].all()
    assert (y[0] == numbers(codes, scales)).all() and (y[1] == y[0]).all()


@needs_compiler
@pytest.mark.parametrize("lanes", [16, 20, 48, 128, 256])
def test_rows_are_the_nearest_of_all_floats(lanes):
    check(lanes, library())


@needs_compiler
@pytest.mark.parametrize("lanes", only((20, 128), 20))
def test_rows_that_have_their_scales_behind_them(lanes):
    """The float behind whole sixteens of bytes, which other programs read and write: rows whose
    scale is none of those that there are are no numbers."""
    x, y = rows_of(lanes, lanes), np.full((2, 16, lanes), np.nan, np.float32)
    width = -(-lanes // 16) * 16
    rows = np.full((16, width + 16), 0xAA, np.uint8)
    library(behind=True).run(f"code_{lanes}", GRID, [x, np.int32(32), rows, y])
    codes, scales = coded(x.astype(np.float64))
    floats = np.ascontiguousarray(rows[:, width : width + 4]).view(np.float32)[:, 0]
    assert (rows[:, :lanes] == codes).all() and (floats == 2.0 ** (scales - 127.0)).all()
    assert (rows[:, lanes:width] == 0xAA).all() and (rows[:, width + 4 :] == 0xAA).all()
    assert (y[0] == numbers(codes, scales)).all() and (y[1] == y[0]).all()


@needs_compiler
@pytest.mark.parametrize("scale", [0.75, 0, -1, 2.0**-16, 2.0**8, 1e-40, np.inf, np.nan])
def test_scales_of_others_that_rows_are_not_coded_with_are_infinite(scale):
    """Nobody rounds them to one that there is."""
    rows = np.full((1, 32), 0x38, np.uint8)  # of ones
    rows[0, 16:20] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    y = np.zeros(1, np.float32)
    library(behind=True).run("element_16", GRID, [rows, y])
    assert np.isinf(y[0])


EDITS = {
    "a scale is too small": ("> 0x600000u", "> 0x7fffffu"),
    "a scale is twice what it needs": ("more - 8, INFINITE_SCALE", "more - 7, INFINITE_SCALE"),
    "small rows have a large scale": ("LEAST_SCALE = 127 - 15", "LEAST_SCALE = 127 - 14"),
    "the largest scale is none": ("INFINITE_SCALE = 127 + 8", "INFINITE_SCALE = 127 + 7"),
    "ties are rounded up": ("0x7ffffu + (most >> 20 & 1u)", "0x80000u"),
    "floats below the normal ones are halves": ("float_of(most) * 512.0f", "float_of(most) * 256.0f"),
    "the least normal floats are none": ("most < 0x3c800000u", "most < 0x3d800000u"),
    "the largest float is less": ("code < 0x7eu ? code : 0x7eu", "code < 0x7du ? code : 0x7du"),
    "zeros have no sign": ("| (bits >> 24 & 0x80u)", "| (code ? bits >> 24 & 0x80u : 0u)"),
}  # fmt: skip
"""Edits that make coding wrong: what there is in the library, and what is put there."""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_edits_of_coding_are_noticed(name):
    old, new = EDITS[name]
    own = dict(headers())
    assert own["mc_coded_rows.cuh"].count(old) == 1
    own["mc_coded_rows.cuh"] = own["mc_coded_rows.cuh"].replace(old, new)
    edited = Library((Path(__file__).parent / "coded_rows.cu").read_text(), own, QUICK)
    with pytest.raises(AssertionError):
        check(128, edited)


@needs_compiler
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, LARGEST * 1.0001, 3e38])
def test_rows_that_no_scale_is_for_are_no_numbers(wrong):
    x = np.ones((16, 48), np.float32)
    x[3, 7] = wrong
    bytes_of, y = np.zeros(16 * 49, np.uint8), np.zeros((2, 16, 48), np.float32)
    library().run("code_48", GRID, [x, np.int32(0), bytes_of, y])
    assert not np.isfinite(y[:, 3]).any() and np.isfinite(np.delete(y, 3, 1)).all()
    for kind in ("f16", "bf16"):
        words, scales = np.full(1, 0x7E0138, np.uint32), np.full(2, bytes_of[3], np.uint32)
        pairs = np.zeros(2, np.uint32)
        library().run(f"decode_{kind}", GRID, [words, scales, pairs, np.int32(1)])
        assert not np.isfinite(from_kind(pairs.view(np.uint16), kind)).any()
    with np.errstate(all="ignore"):
        assert not np.isfinite(coded_rows(x)[3]).any()


@needs_compiler
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_are_what_floats_and_scales_stand_for(kind):
    """All floats with all scales, and two scales in a word."""
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    codes = np.concatenate([codes, codes[:2]])  # whole fours
    own = np.array(EXPONENTS) + 127
    words = np.concatenate([np.roll(codes, n) for n in range(len(own))]).view(np.uint32)
    each = len(codes) // 4
    scales = np.stack([np.repeat(own, each), np.repeat(own[::-1], each)], -1).astype(np.uint32)
    pairs = np.zeros((len(words), 2), np.uint32)
    library().run(f"decode_{kind}", GRID, [words, scales, pairs, np.int32(len(words))])
    found = from_kind(pairs.view(np.uint16), kind).reshape(-1, 2, 2).astype(np.float64)
    given = words.view(np.uint8).reshape(-1, 2, 2)  # of two tokens, two lanes each
    wanted = np.stack([numbers(given[:, n], scales[:, n]) for n in range(2)], 1)
    assert (found == wanted.swapaxes(1, 2)).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_interpreter_rounds_alike(kind):
    for lanes in (1, 16, 80):
        x = rows_of(max(lanes, 2), lanes)[:, :lanes].astype(kind)
        found = coded_rows(x)
        assert found.dtype == kind and (found == kept(x.astype(np.float64))).all()
