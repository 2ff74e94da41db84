"""The meaning of '@', '+' and transpose over named dims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.frontend.language.dims import (
    contraction,
    helpful_transpose,
    outer_pair,
    rows_meet,
    spreads_over,
    transposed,
)

HEADS = [("H", "G")]


def _dims(text: str) -> tuple[str, ...]:
    return tuple(text)


@pytest.mark.parametrize(
    ("left", "right", "contract", "result"),
    [
        ("MK", "KN", "K", "MN"),
        ("BLE", "EHD", "E", "BLHD"),
        ("BLE", "EF", "E", "BLF"),
        ("BLHD", "HDE", "HD", "BLE"),
        ("BLHD", "BDGS", "D", "BLHS"),
        ("BLHS", "BSGD", "S", "BLHD"),
        ("BLHD", "BDHS", "D", "BLHS"),
        ("BLHD", "BDS", "D", "BLHS"),
        ("BLHS", "BSD", "S", "BLHD"),
        ("E", "EF", "E", "F"),
        ("HD", "HDE", "HD", "E"),
        ("BE", "BEF", "E", "BF"),
        ("LE", "E", "E", "L"),
    ],
)
def test_contraction(left: str, right: str, contract: str, result: str) -> None:
    found = contraction(_dims(left), _dims(right), HEADS)
    assert found is not None
    assert ("".join(found.contract), "".join(found.result)) == (contract, result)
    assert found.group == (("H", "G") if "H" in left and "G" in right else ())


@pytest.mark.parametrize(
    ("left", "right"),
    [("BLE", "FE"), ("LE", "EL"), ("BLHD", "BLHD"), ("BLHD", "BDHL"), ("E", "E"), ("BL", "CD")],
)
def test_no_contraction(left: str, right: str) -> None:
    assert contraction(_dims(left), _dims(right), HEADS) is None


def test_helpful_transpose() -> None:
    assert helpful_transpose(_dims("BLHD"), _dims("BSGD"), HEADS) == ()
    assert helpful_transpose(_dims("BLE"), _dims("FEH"), HEADS) == ("F", "E")
    assert helpful_transpose(_dims("BLE"), _dims("FG"), HEADS) is None


def test_rows_meet() -> None:
    assert rows_meet(_dims("BLE"), _dims("BEL")) == "L"
    assert rows_meet(_dims("LE"), _dims("EF")) == ""


def test_bare_transpose_leaves_the_batch() -> None:
    assert transposed(_dims("BSGD"), *outer_pair(_dims("BSGD")) or ("", "")) == _dims("BDGS")
    assert transposed(_dims("VE"), *outer_pair(_dims("VE")) or ("", "")) == _dims("EV")
    assert outer_pair(_dims("BE")) is None


def test_spreading_keeps_the_order() -> None:
    assert spreads_over(_dims("HD"), _dims("BLHD"))
    assert spreads_over(_dims("BD"), _dims("BLHD"))
    assert not spreads_over(_dims("DH"), _dims("BLHD"))
    assert not spreads_over(_dims("EL"), _dims("LE"))


SOME_DIMS = st.lists(st.sampled_from("BLHGDES"), min_size=1, max_size=4, unique=True).map(tuple)


@given(SOME_DIMS, SOME_DIMS)
def test_contraction_is_an_einsum(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    """Result dims are unique, and NumPy computes the product from the dims alone."""
    found = contraction(left, right, [])
    if found is None:
        return
    assert len(set(found.result)) == len(found.result)
    assert set(found.result) == (set(left) | set(right)) - set(found.contract)
    extents = {d: i + 2 for i, d in enumerate("BLHGDES")}
    arrays = [np.ones([extents[d] for d in dims]) for dims in (left, right)]
    result = np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(found.result)}", *arrays)
    summed = np.prod([extents[d] for d in found.contract])
    assert (result == summed).all()


@given(SOME_DIMS, SOME_DIMS, st.sampled_from("XYZ"))
def test_contraction_does_not_depend_on_rows_in_front(
    left: tuple[str, ...], right: tuple[str, ...], row: str
) -> None:
    """A row dim of the left side alone goes through to the result and changes nothing else."""
    found = contraction(left, right, [])
    if found is None or left[0] == right[0]:
        return
    mapped = contraction((row, *left), right, [])
    assert mapped is not None
    assert mapped.contract == found.contract
    assert mapped.result == (row, *found.result)
