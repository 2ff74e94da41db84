"""Emitted products agree with NumPy on the fabric simulator, with bounded queues."""

import numpy as np
import pytest
from csl_runs import compiled, emit, product_error, run_files
from reduced import crossed

MESHES = ["1x1", "2x2", "3x3", "4x4", "5x5", "4x6", "1x4", "4x1", "3x2"]
SIZES = [(16, 24, 12), (7, 13, 5)]


@pytest.mark.parametrize(
    ("mesh", "arch", "dtype"), crossed(MESHES, ["wse2", "wse3"], ["f16", "f32"])
)
def test_product(mesh, arch, dtype, tmp_path, monkeypatch):
    sizes = SIZES[sum(map(ord, mesh + arch + dtype)) % 2]
    error, _ = product_error(tmp_path, monkeypatch, sizes, dtype, dtype, arch, mesh)
    assert error <= 1


@pytest.mark.parametrize("head", ["", "B=1, "])
@pytest.mark.parametrize("mesh", ["1x1", "3x4"])
def test_a_vector_times_a_matrix(head, mesh, tmp_path, monkeypatch):
    dims = ", ".join([*(["B"] if head else []), "{}"])
    text = (
        f"model v({head}K=13, N=6) {{\n  weights f32  accumulate f32\n  param w[K, N]\n"
        f"  main(x[{dims.format('K')}]) -> [{dims.format('N')}] {{ return x @ w }}\n}}\n"
    )
    modules = compiled(text, tmp_path, device="wse2", mesh=mesh, dtype="f32")
    rng = np.random.default_rng(0)
    x = rng.random((1, 13) if head else 13, np.float32)
    w = rng.random((13, 6), np.float32)
    found, _ = run_files(emit(modules), {"x": x, "w": w}, tmp_path, monkeypatch)
    (result,) = found.values()
    np.testing.assert_allclose(result, x @ w, 1e-5)
