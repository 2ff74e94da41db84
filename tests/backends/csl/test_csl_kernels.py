"""Kernels one by one: shapes that random programs are unlikely to meet."""

import numpy as np
import pytest
from csl_runs import run_files, tile_text
from csl_texts import tile_program

from meshc.backends.csl import emit

WIDE = "  buffer %w : f32[3, 4]\n"
KEEP = "    tile.copy %c, %w[2]\n"
A = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
B = A[:, ::-1] + 5


@pytest.fixture(params=["wse2", "wse3"])
def arch(request):
    return request.param


def last_row(statement, arch, folder, monkeypatch):
    """The last row of a buffer of ones, 3 x 4, after ``statement``."""
    body = f"    tile.fill %w {{value = 1.0}}\n    {statement}\n{KEEP}"
    files = emit({"main": tile_text(tile_program(body, WIDE), arch)})
    tensors = {"a": A, "b": B, "c": A * 0}
    return run_files(files, tensors, folder, monkeypatch)[0]["c_after"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("tile.add %w, %w, %a", A + 1),
        ("tile.mul %w, %w, %b", B),
        ("tile.copy %w[1 +: 2] as [4, 2], %w[0 +: 2] as [4, 2]", A * 0 + 1),
        ("tile.scale %w, %w {factor = -3.0}", A * 0 - 3),
        ("tile.copy %w order [1, 0], %w as [4, 3]", A * 0 + 1),
        ("tile.add %w[2], %a, %b", A + B),
        ('tile.fill %w[2, x +: 2] {value = 7.0, when = "x <= 2"}',
         np.array([[[7, 7, 1, 1], [1, 7, 7, 1], [1, 1, 7, 7]]], np.float32)),
    ],
)  # fmt: skip
def test_kernels(statement, expected, arch, tmp_path, monkeypatch):
    found = last_row(statement, arch, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [1e30, -1e39, float("inf"), 0.1])
def test_literals(value, arch, tmp_path, monkeypatch):
    found = last_row(f"tile.fill %w {{value = {value!r}}}", arch, tmp_path, monkeypatch)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, np.full_like(A, value))
