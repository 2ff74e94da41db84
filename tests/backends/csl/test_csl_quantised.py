"""Weights that stay quantised in emitted CSL: numbers that the simulator decodes are those of
NumPy, to the bit, and what no core can decode is refused."""

import json

import numpy as np
import pytest
from csl_code_programs import decoded, program, tensors
from csl_runs import compiled, emit, run_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.ir.codes import CODE_FORMATS

MOST = 1 << 16


def check(form, sizes, dtype, arch, seed, folder, monkeypatch):
    groups, layers, columns, first, count = sizes
    text = program(form, groups, layers, columns, first, count, dtype)
    given = tensors(form, groups, layers, columns, seed)
    files = emit(compiled(text, folder, "codes.meshir", device=arch))
    found, cycles = run_files(files, given, folder, monkeypatch)
    np.testing.assert_array_equal(
        found["y"].view(np.uint8), decoded(form, given, first, count, dtype).view(np.uint8)
    )
    return json.loads(files["report.json"])["predicted_cycles"], cycles


CASES = [
    ("q4_0", (1, 2, 5, 1, 3), "f16", "wse2"),
    ("q4_1", (3, 1, 8, 0, 8), "f16", "wse3"),
    ("q8_0", (2, 2, 6, 2, 4), "f32", "wse3"),
    ("int4_64", (1, 1, 7, 0, 7), "f32", "wse2"),
]


@pytest.mark.parametrize(("name", "sizes", "dtype", "arch"), CASES)
def test_numbers_are_those_of_numpy(name, sizes, dtype, arch, tmp_path, monkeypatch):
    check(CODE_FORMATS[name], sizes, dtype, arch, 1, tmp_path, monkeypatch)


@st.composite
def matrices(draw):
    columns = draw(st.integers(1, 12))
    first = draw(st.integers(0, columns - 1))
    count = draw(st.integers(1, columns - first))
    return draw(st.integers(1, 3)), draw(st.integers(1, 3)), columns, first, count


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(CODE_FORMATS)),
    matrices(),
    st.sampled_from(["f16", "f32"]),
    st.sampled_from(["wse2", "wse3"]),
    st.integers(0, MOST),
)
def test_drawn_matrices(tmp_path_factory, name, sizes, dtype, arch, seed):
    folder = tmp_path_factory.mktemp("quantised")
    with pytest.MonkeyPatch.context() as patch:
        check(CODE_FORMATS[name], sizes, dtype, arch, seed, folder, patch)
