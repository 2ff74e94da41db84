"""Weights as 16-bit words in the order in which kernels read them, beside plain formulas."""

import numpy as np
import pytest

from meshc.backends.cuda import packing
from meshc.backends.cuda.packing import copied, gated, in_fragments, words

ODD = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-40, 65520.0, 1.0039062]


def bf16_of(value):
    """The nearest bf16 of a float, the even one of two, by its definition."""
    if np.isnan(value):
        return np.nan
    bits = int(np.float32(value).view(np.uint32))
    down, rest = bits >> 16, bits & 0xFFFF
    return down + (rest > 0x8000 or (rest == 0x8000 and down & 1))


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "stored in bf16"])
def test_words_of_bf16(exact, monkeypatch):
    monkeypatch.setattr(packing, "_RUN", 16)  # one run of the odd ones, others without
    drawn = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)
    drawn[0] = np.array(ODD, np.float32)
    if exact:
        drawn = (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32)
    found = words(drawn, "bf16")
    for value, word in zip(drawn.flat, found.flat, strict=True):
        wanted = bf16_of(value)
        assert (word & 0x7FFF) > 0x7F80 if np.isnan(wanted) else word == wanted


def test_words_of_f16():
    drawn = np.array(ODD, np.float32).reshape(1, -1)
    with np.errstate(over="ignore"):
        wanted = drawn.astype(np.float16).view(np.uint16)
    assert (words(drawn, "f16") == wanted).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(16, 16), (70, 300), (1, 2), (200, 33)])
def test_fragments_of_a_matrix(rows, width, turned):
    given = np.arange(1, 1 + rows * width).astype(np.uint16).reshape(rows, width)
    given = np.ascontiguousarray(given.T).T if turned else given
    found = in_fragments(given)
    assert found.shape == (-(-rows // 16), -(-width // 16), 32, 8)
    for group, block, lane, place in np.ndindex(*found.shape):
        half, pair, one = place // 2 % 2, place // 4, place % 2
        row = 16 * group + 8 * half + lane // 4
        column = 16 * block + 4 * (lane % 4) + 2 * pair + one
        inside = row < rows and column < width
        assert found[group, block, lane, place] == (given[row, column] if inside else 0)


def test_gates_and_values_in_turn():
    gates, values = np.arange(2 * 70 * 300).astype(np.uint16).reshape(2, 300, 70)
    found = gated(gates, values)
    assert (found[0::2] == gates.T).all() and (found[1::2] == values.T).all()
    assert list(gated(np.array([1, 3]), np.array([2, 4]))) == [1, 2, 3, 4]


def test_copies_of_parts_of_matrices():
    given = np.arange(130 * 600).reshape(130, 600)
    for source in (given, given.T, given[1:, 3:].T, given[::2]):
        target = np.zeros_like(source)
        copied(source, target)
        assert (target == source).all()
