"""Port maps of older hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.sim.host.portmaps import (
    convert_input_tensor,
    format_output_tensor,
    prepare_output_tensor,
    read_map,
)
from meshc.support.diagnostics import MeshcError


def test_tiles_of_a_matrix_stored_by_columns() -> None:
    text = "{ A[j=0:3][i=0:5] -> [PE[i//3, j//2] ->  \\\n index[i%3, j%2]] }".replace("\\\n", "")
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    px, py, w, h, words, data = convert_input_tensor(text, a)
    assert (px, py, w, h, words) == (0, 0, 2, 2, 6)
    tiles = data.view(np.float32).reshape(2, 2, 3, 2)
    assert (tiles[1, 0] == a[2:4, 0:3].T).all()
    assert (format_output_tensor(text, np.float32, data) == a).all()


def test_a_vector_on_part_of_the_pes() -> None:
    text = "{out_tensor[idx=0:3] -> [PE[idx + 1, 2] -> index[0]]}"
    px, py, w, h, words, data = prepare_output_tensor(text, np.int16)
    assert (px, py, w, h, words, len(data)) == (1, 2, 4, 1, 1, 4)
    data[:] = [0xFFFF, 2, 3, 4]
    assert list(format_output_tensor(text, np.int16, data)) == [-1, 2, 3, 4]


def test_indices_in_one_bracket_and_a_single_value() -> None:
    assert read_map("{t[a=0:3,b=0:2] -> [PE[a, 0] -> index[a, b]]}").shape == (4, 3)
    assert read_map("{ n[i=0:0][j=0] -> [PE[1, 0] -> index[i]] }").shape == (1, 1)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_round_trip(w: int, h: int, rows: int, columns: int) -> None:
    text = (
        f"{{ A[j=0:{h * rows - 1}][i=0:{w * columns - 1}] -> "
        f"[PE[i//{columns}, j//{rows}] -> index[j%{rows}, i%{columns}]] }}"
    )
    a = np.random.default_rng(w).standard_normal((h * rows, w * columns)).astype(np.float32)
    *region, data = convert_input_tensor(text, a)
    assert region == [0, 0, w, h, rows * columns]
    assert (format_output_tensor(text, np.float32, data) == a).all()


@pytest.mark.every_case
@pytest.mark.parametrize(
    "text",
    [
        "A[i=0:3] -> [PE[0, 0] -> index[i]]",
        "{ A[i] -> [PE[0, 0] -> index[i]] }",
        "{ A[i=0:3] -> [PE[0] -> index[i]] }",
        "{ A[i=0:3] -> [PE[0, 0] -> index[k]] }",
        "{ A[i=0:3] -> [PE[0, 0] -> index[i - 1]] }",
        "{ A[i=0:3] -> [PE[0, 0] -> index[i % 0]] }",
        "{ A[i=0:3] -> [PE[0, 0] -> index[__import__('os')]] }",
        "{ A[i=3:0] -> [PE[0, 0] -> index[i]] }",
        "{ A[i=0:99999999999] -> [PE[0, 0] -> index[0]] }",
    ],
)
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(MeshcError) as caught:
        read_map(text)
    assert caught.value.diagnostics[0].code == "csl-host"


def test_an_array_of_another_size_is_refused() -> None:
    with pytest.raises(MeshcError, match="has 4 elements, the array 5"):
        convert_input_tensor("{ A[i=0:3] -> [PE[0, 0] -> index[i]] }", np.zeros(5, np.float32))
