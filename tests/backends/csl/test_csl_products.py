"""Emitted products agree with NumPy on the fabric simulator, with bounded queues."""

import pytest
from csl_runs import product_error

MESHES = ["1x1", "2x2", "3x3", "4x4", "5x5", "4x6", "1x4", "4x1", "3x2"]
SIZES = [(16, 24, 12), (7, 13, 5)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("dtype", "accumulate"), [("f16", "f16"), ("f32", "f32")])
def test_product(mesh, arch, dtype, accumulate, tmp_path, monkeypatch):
    sizes = SIZES[sum(map(ord, mesh + arch + dtype)) % 2]
    error, _ = product_error(tmp_path, monkeypatch, sizes, dtype, accumulate, arch, mesh)
    assert error <= 1
