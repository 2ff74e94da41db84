"""Products of codes with a few vectors that are whole numbers (mc_digits.cuh), beside float64:
vectors of any size, and what is no number."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library
from meshc.backends.cuda.packing.codes import CodedRows
from meshc.backends.cuda.packing.matrix_rows import Rows
from meshc.backends.cuda.tasks.coded import block_type
from meshc.ir.codes import CODE_FORMATS

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

CASES = {
    "int4_128_3": ("int4_128", 3, 768),
    "int4_128_1": ("int4_128", 1, 768),
    "q8_0_1": ("q8_0", 1, 800),
    "q4_k_2": ("q4_k", 2, 768),
    "q4_k_1": ("q4_k", 1, 768),
}
"""Formats, numbers of vectors, of which one has groups side by side, and widths."""


@cache
def library():
    text = (Path(__file__).parent / "digits.cu").read_text()
    for name, (form, count, _) in CASES.items():
        text += f"using Of_{name} = {block_type(CODE_FORMATS[form])};\n"
        text += f"MULTIPLY({name}, Of_{name}, {count})\n"
    return Library(text, toolchain=QUICK)


class Matrix:
    """16 rows of random codes: [16, width] each, ``codes``, ``scales`` and what is added to a code
    times its scale, ``least``."""

    def __init__(self, name):
        form, self.count, self.width = CASES[name]
        self.name, self.form, rng = name, CODE_FORMATS[form], np.random.default_rng(3)
        most = 2**self.form.codes.bits
        codes = rng.integers(0, most, (16, self.width)).astype(np.uint8)
        numbers = [self._numbers(rng, part) for part in self.form.parts]
        given = [Rows.whole(one) for one in numbers]
        coded = CodedRows(self.form, Rows.whole(codes), given, "f16")
        self.packed = np.zeros(coded.words, np.uint16)
        coded.fill(self.packed)
        spread = [np.repeat(one.astype(float), self.width // one.shape[1], 1) for one in numbers]
        if self.form.block:
            spread = [spread[0] * spread[1], spread[2] * spread[3]]
        self.codes, self.scales = codes.astype(float), spread[0]
        self.least = spread[1] if self.form.least else -self.form.zero * spread[0]
        self.weights = self.codes * self.scales + self.least

    def _numbers(self, rng, part):
        shape = 16, self.width // self.form.elements(part)
        if self.form.block and self.form.elements(part) < self.form.block:
            return rng.integers(0, 64, shape).astype(np.uint8)
        signs = rng.choice([-1.0, 1.0], shape)
        return (signs * rng.uniform(0.5, 1.5, shape) * 2.0**-13).astype(np.float16)

    def times(self, vectors):
        """The sums [16, vectors] of the library."""
        groups = self.width // self.form.group
        room = groups * (4 * self.form.group * self.count + 16 * self.count)
        columns, sums = np.zeros(room, np.uint8), np.full((16, self.count), np.nan, np.float32)
        given = [self.packed.view(np.uint8), np.int32(self.width // self.form.span)]
        grid = Grid(1, 32, 1, 0)
        library().run(self.name, grid, [*given, vectors.astype(np.float32), columns, sums])
        return sums

    def noise(self, vectors):
        """What sums may be off by, [16, vectors]: four times what rounding leaves on average of
        values over a unit, that of 30 bits of the largest of their group or 2^-126, and of sums in
        f32, of which a group has some."""
        sizes = np.abs(vectors).reshape(len(vectors), -1, self.form.group)
        most = 2.0 ** np.ceil(np.log2(np.maximum(sizes.max(-1, keepdims=True), 2.0**-97)))
        units = np.broadcast_to(np.maximum(most * 2.0**-30, 2.0**-126), sizes.shape)
        products, least = (self.codes * self.scales) ** 2, self.least**2
        of_values = products @ (units.reshape(vectors.shape) ** 2 / 12).T
        of_sums = (len(sizes[0]) + 8) * 2.0**-50 * (products + least) @ (vectors**2).T
        return 4 * np.sqrt(of_values + of_sums)


@cache
def matrix(name):
    return Matrix(name)


def drawn(name, size=1.0):
    vectors = np.random.default_rng(4).standard_normal(CASES[name][1:]) * size
    return vectors.astype(np.float32).astype(float)


def agree(name, vectors):
    of = matrix(name)
    error = np.abs(of.times(vectors) - of.weights @ vectors.T)
    assert (error / of.noise(vectors)).max() <= 1


@pytest.mark.parametrize("name", CASES)
def test_vectors_of_any_size_agree_with_float64(name):
    for size in (1.0, 1e30, 1e-30):
        agree(name, drawn(name, size))


@pytest.mark.parametrize("name", CASES)
def test_groups_of_all_sizes_do_not_disturb_each_other(name):
    """A group with one number that is far larger than the others, one of zeros, one of numbers
    below the normal ones, and others."""
    vectors, group = drawn(name), matrix(name).form.group
    vectors[:, 7] = 1e4
    vectors[:, group : 2 * group] = 0.0
    vectors[:, 2 * group : 3 * group] *= 1e-39
    agree(name, vectors)
    assert (matrix(name).times(np.zeros_like(vectors)) == 0).all()


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_finite_number_gives_none(name):
    """Of the vector that has it, beside zeros too; sums of the others are as they are."""
    for size, wrong in product((1.0, 0.0), (np.nan, np.inf, -np.inf)):
        vectors = drawn(name)
        vectors[-1] *= size
        without = matrix(name).times(vectors)
        vectors[-1, 300] = wrong
        found = matrix(name).times(vectors)
        assert not np.isfinite(found[:, -1]).any()
        assert (found[:, :-1] == without[:, :-1]).all()
