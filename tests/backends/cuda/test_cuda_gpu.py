"""Kernels on a GPU: results of the executor, and refusals of a real driver. Skipped without one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import gpu

from meshc.backends.cuda.executor import CXX, Grid, Library
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.support.diagnostics import MeshcError

HERE = Path(__file__).parent

pytestmark = pytest.mark.gpu


@pytest.fixture
def kernels():
    """Kernels of primitives.cu on a GPU, and the same in the executor."""
    text = (HERE / "primitives.cu").read_text(encoding="utf-8")
    with gpu() as device:
        if CXX.path() is None:
            pytest.skip("there is no C++ compiler")
        yield device, device.load(compile_cubin(text)), Library(text)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 12, 16])
@pytest.mark.parametrize("kind", ["sum", "max", "gather"])
def test_collectives_on_a_gpu_agree_with_the_executor(kernels, kind, size):
    device, loaded, executor = kernels
    count, clusters = 72, 5
    gather = kind == "gather"
    given = (clusters, 2, 4 * size * count) if gather else (clusters, size, count)
    x = np.random.default_rng(size).standard_normal(given).astype(np.float32)
    shape = (clusters, size, *given[1:]) if gather else given
    shared = 16 + (x[0].nbytes if gather else 2 * 4 * count)
    grid = Grid(clusters * size, 64, size, shared)
    expected = np.zeros(shape, np.float32)
    executor.run(f"{kind}_{size}", grid, [x, expected, np.int32(count)])
    source, found = device.upload(x), device.allocate(expected.nbytes)
    with device.stream.capture() as graph:
        loaded[f"{kind}_{size}"].launch(grid, [source, found, np.int32(count)], device.stream)
    for _ in range(3):
        found.fill()
        graph.launch()
        assert (found.read(np.float32, shape) == expected).all()


@pytest.mark.parametrize("tiles", [0, 1, 2, 9])
def test_a_ring_on_a_gpu_agrees_with_the_executor(kernels, tiles):
    device, loaded, executor = kernels
    x = np.random.default_rng(tiles).standard_normal((tiles + 1, 96)).astype(np.float32)
    grid, expected = Grid(1, 128, 1, 128 + 2 * 384), np.zeros(96, np.float32)
    executor.run("ring_sum", grid, [x, expected, np.int32(tiles)])
    found = device.upload(np.zeros(96, np.float32))
    arguments = [device.upload(x), found, np.int32(tiles)]
    loaded["ring_sum"].launch(grid, arguments, device.stream)
    assert (found.read(np.float32, 96) == expected).all()


def test_a_grid_meets_on_a_gpu(kernels):
    device, loaded, _ = kernels
    total, counter = (device.upload(np.zeros(1, np.uint32)) for _ in range(2))
    found = device.upload(np.zeros((2, 12), np.float32))
    grid = Grid(12, 64, 4, 0, whole_grid=True)
    loaded["grid_total"].launch(grid, [total, found, counter], device.stream)
    assert (found.read(np.float32, (2, 12)) == [[66.0], [132.0]]).all()


def test_a_grid_too_large_to_meet_is_refused_on_a_gpu(kernels):
    device, loaded, _ = kernels
    x = device.allocate(64)
    with pytest.raises(MeshcError, match=r"\[cuda-cluster\]"):
        loaded["grid_total"].launch(Grid(1 << 16, 64, 4, 0, True), [x, x, x], device.stream)


FAULT = """
import sys
import numpy as np
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import Grid
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.support.diagnostics import MeshcError
try:
    with Device() as device:
        kernel = device.load(compile_cubin(sys.stdin.read()))["sum_2"]
        nowhere = np.uint64(0)
        kernel.launch(Grid(2, 64, 2, 592), [nowhere, nowhere, np.int32(72)], device.stream)
        device.stream.synchronize()
except MeshcError as problem:
    print(problem)
"""


def test_a_fault_on_a_gpu_names_the_kernel():
    """In a process of its own, whose context is of no use after."""
    gpu().close()
    text = (HERE / "primitives.cu").read_text(encoding="utf-8")
    command = [sys.executable, "-c", FAULT]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("error[cuda-fault]: kernel 'sum_2' failed"), done.stdout
