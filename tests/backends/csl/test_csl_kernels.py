"""Kernels one by one: shapes that random programs are unlikely to meet."""

import re

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from csl_texts import tile_program

WIDE = "  buffer %w : f32[3, 4]\n"
KEEP = "    tile.copy %c, %w[2]\n"
A = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
B = A[:, ::-1] + 5
RANDOM = np.random.default_rng(5)


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


def test_wide_columns(arch, tmp_path, monkeypatch):
    """A column of a tile of more than 127 elements: a DSD of one dim has strides of eight bits."""
    body = "    tile.copy %w[:, 129], %a\n    tile.copy %c, %w[:, 129]\n"
    files = emit({"main": tile_text(tile_program(body, "  buffer %w : f32[4, 130]\n"), arch)})
    found, _ = run_files(files, {"a": A, "b": B, "c": A * 0}, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found["c_after"], A)
    assert widest_stride(files["main.csl"]) == 1


@pytest.mark.parametrize("sizes", [(3, 2, 131), (131, 2, 3), (1, 130, 2), (2, 131, 1), (2, 1, 140)])
@pytest.mark.parametrize("turned", ["false", "true"])
def test_products_of_wide_tiles(sizes, turned, arch, tmp_path, monkeypatch):
    m, k, n = sizes
    right = (n, k) if turned == "true" else (k, n)
    ports = [("p", "in", (m, k)), ("q", "in", right), ("r", "out", (m, n))]
    text = f"module @t level(tile) {{\n  dims M = {m}, K = {k}, N = {n}\n"
    text += "  mesh y = 1, x = 1\n"
    for name, role, (rows, columns) in ports:
        text += f"  buffer %{name} : f32[{rows}, {columns}] {{role = {role}}}\n"
    for name, way, dims in zip("pqr", ("in", "in", "out"), ("MK", "NK", "MN"), strict=True):
        dims = "KN" if name == "q" and turned == "false" else dims
        text += f"  port @{name} {way} f32[{', '.join(dims)}] : %{name} "
        text += "{lanes = [i, j], element = [i, j]}\n"
    text += "  program @main {\n    tile.gemm %r, %p, %q "
    text += f"{{accumulate = false, transposed = {turned}}}\n  }}\n}}\n"
    files = emit({"main": tile_text(text, arch)})
    p, q = (RANDOM.integers(-4, 5, shape).astype(np.float32) for _, _, shape in ports[:2])
    found, _ = run_files(files, {"p": p, "q": q}, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found["r"], p @ (q.T if turned == "true" else q))
    assert widest_stride(files["main.csl"]) <= 127


def widest_stride(text):
    """The widest stride of a DSD of one dim."""
    access = r"mem1d_dsd, \.\{ \.tensor_access = \|i\|\{\d+\} -> \w+\[(?:(\d+) \* )?i"
    found = re.findall(access, text)
    assert found
    return max(int(stride or 1) for stride in found)
