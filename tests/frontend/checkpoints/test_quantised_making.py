"""Codes and scales that are made of numbers, against the quantiser of the ``gguf`` package."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshc.frontend.checkpoints.quantised.making import quantised
from meshc.ir.codes import CODE_FORMATS, CodeFormat

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.models

BLOCKS = {"q4_0": 2, "q4_1": 3, "q8_0": 8}
NUMBERS = arrays(np.int32, (3, 64), elements=st.integers(-9999, 9999)).map(
    lambda numbers: numbers.astype(np.float32) / np.float32(97)
)


def decoded(numbers: np.ndarray, axis: int, form: CodeFormat) -> np.ndarray:
    """The numbers that codes and scales of ``numbers`` stand for."""
    counts = [*numbers.shape]
    counts[axis] //= form.group
    found = quantised(numbers, (*counts,), form)
    scales, least = (
        None if part is None else part.repeat(form.group, axis)
        for part in (found.scales, found.least)
    )
    assert scales is not None and found.codes.dtype == np.uint8
    return (found.codes.astype(np.float32) - form.zero) * scales + (0 if least is None else least)


@pytest.mark.parametrize("name", BLOCKS)
@given(numbers=NUMBERS)
@settings(max_examples=100)
def test_blocks_are_those_of_ggml(name: str, numbers: np.ndarray) -> None:
    kind, form = gguf.GGMLQuantizationType(BLOCKS[name]), CODE_FORMATS[name]
    wanted = gguf.quants.dequantize(gguf.quants.quantize(numbers, kind), kind)
    np.testing.assert_array_equal(decoded(numbers, 1, form), wanted)
    np.testing.assert_array_equal(decoded(np.ascontiguousarray(numbers.T), 0, form), wanted.T)


def test_groups_may_lie_along_two_axes() -> None:
    """Heads that are narrower than a group are grouped with those beside them."""
    numbers = np.random.default_rng(0).standard_normal((4, 16, 3)).astype(np.float32)
    form = CODE_FORMATS["q4_0"]
    found, flat = quantised(numbers, (2, 1, 3), form), numbers.reshape(64, 3)
    wanted = quantised(flat, (2, 3), form)
    np.testing.assert_array_equal(found.codes, wanted.codes.reshape(numbers.shape))
    np.testing.assert_array_equal(found.scales, wanted.scales.reshape(2, 1, 3))


@pytest.mark.parametrize("group", [32, 64])
@given(numbers=NUMBERS)
@settings(max_examples=100)
def test_int4_is_off_by_half_a_step_and_has_zero(group: int, numbers: np.ndarray) -> None:
    form = CODE_FORMATS[f"int4_{group}"]
    found = quantised(numbers, (3, 64 // group), form)
    step = found.scales.repeat(group, 1)
    error = np.abs(decoded(numbers, 1, form) - numbers)
    assert (error <= 0.51 * step + 0.01 * np.abs(numbers)).all()
    assert found.least is not None
    zeros = -found.least / np.where(found.scales > 0, found.scales, 1)
    np.testing.assert_array_equal(zeros, np.rint(zeros))
    assert ((zeros >= 0) & (zeros <= 15)).all()
