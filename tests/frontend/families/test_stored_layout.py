"""How stored tensors hold params, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from meshc.frontend.checkpoints.stored_layout import stored_layout

EXTENTS = {"E": 5, "H": 3, "G": 2, "D": 4, "N": 2, "P": 6, "F": 7}


def stored(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_rows_of_heads_are_transposed() -> None:
    layout = stored_layout(["H D", "E"], ("E", "H", "D"), EXTENTS)
    assert (layout.stored_shape(), layout.shape()) == ((12, 5), (5, 3, 4))
    given = stored(12, 5)
    read = layout.read(given)
    assert read.flags.c_contiguous
    assert all(
        read[e, h, d] == given[h * 4 + d, e] for e in range(5) for h in range(3) for d in range(4)
    )


@pytest.mark.parametrize(("dim", "first"), [("N", 0), ("P", 2)])
def test_lanes_side_by_side_within_heads(dim: str, first: int) -> None:
    layout = stored_layout(["H (N | P)", "E"], (dim, "H", "E"), EXTENTS)
    assert layout.stored_shape() == (24, 5)
    given = stored(24, 5)
    read = layout.read(given)
    for lane in range(EXTENTS[dim]):
        for head in range(3):
            np.testing.assert_array_equal(read[lane, head], given[head * 8 + first + lane])


@pytest.mark.parametrize(("part", "heads", "first"), [(0, "H", 0), (1, "G", 12), (2, "G", 20)])
def test_one_matrix_of_queries_keys_and_values(part: int, heads: str, first: int) -> None:
    layout = stored_layout(["(H D | G D | G D)", "E"], ("E", heads, "D"), EXTENTS, part)
    assert layout.stored_shape() == (28, 5)
    given = stored(28, 5)
    rows = given[first : first + EXTENTS[heads] * 4]
    expected = rows.T.reshape(5, EXTENTS[heads], 4)
    np.testing.assert_array_equal(layout.read(given), expected)


def test_pairs_are_parted_in_files_that_have_them() -> None:
    given = stored(12)
    plain = stored_layout(["H D"], ("H", "D"), EXTENTS)
    np.testing.assert_array_equal(plain.read(given), given.reshape(3, 4))
    read = stored_layout(["H D"], ("H", "D"), EXTENTS, pairs="D").read(given)
    np.testing.assert_array_equal(read, given.reshape(3, 4)[:, [0, 2, 1, 3]])


def test_pairs_of_a_matrix_keep_their_columns() -> None:
    layout = stored_layout(["H D", "E"], ("E", "H", "D"), EXTENTS, pairs="D")
    given = stored(12, 5)
    read = layout.read(given)
    np.testing.assert_array_equal(read[2, 1], given[[4, 6, 5, 7], 2])


@pytest.mark.parametrize(
    ("axes", "dims", "part"),
    [
        (["H D"], ("E", "H", "D"), None),
        (["H D", "D"], ("H", "D"), None),
        (["(F | F)", "E"], ("F", "E"), None),
        (["(N | P)", "E"], ("F", "E"), None),
        (["(N | P)", "E"], ("N", "E"), 1),
    ],
)
def test_texts_that_do_not_hold_each_dim_once(
    axes: list[str], dims: tuple[str, ...], part: int | None
) -> None:
    with pytest.raises(ValueError):
        stored_layout(axes, dims, EXTENTS, part)
