"""The probes of a GPU's ceilings, in the executor and as cubins."""

import ceiling
import kernels
import numpy as np
import pytest
import references

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, Mode
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble, opcodes
from meshc.support.diagnostics import MeshcError

needs_executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@pytest.mark.cuda_compiler
def test_probes_fit_and_copy_in_bulk():
    cubin = compile_cubin(kernels.probes())
    for name, needs in cubin.kernels.items():
        assert needs.stack_bytes == needs.spill_bytes == needs.shared_bytes == 0, name
    try:
        found = opcodes(disassemble(cubin))
    except MeshcError:
        pytest.skip("there is no nvdisasm")
    for stages, kib in ceiling.RINGS:
        assert found[f"read_{stages}x{kib}"]["UBLKCP.S.G"]
    assert not any({"LDL", "STL"} & set(count) for count in found.values())


@pytest.fixture(scope="module")
def probes():
    return Library(kernels.probes(), toolchain=QUICK)


@needs_executor
@pytest.mark.parametrize("runs", [0, 1])
@pytest.mark.parametrize(("stages", "kib"), ceiling.RINGS)
def test_every_tile_is_read_once(probes, stages, kib, runs):
    blocks, tiles = 5, 23
    words = np.random.default_rng(0).integers(0, 1 << 32, (tiles, kib * 256), np.uint32)
    sums = np.zeros(blocks, np.uint32)
    grid = Grid(blocks, 64, 1, ceiling.BARRIER_BYTES + stages * kib * 1024)
    given = [words, sums, np.int32(tiles), np.int32(runs)]
    counts = probes.run(f"read_{stages}x{kib}", grid, given, Mode("random", True))
    assert counts.copied_bytes == words.nbytes
    assert sums.sum(dtype=np.uint32) == words[:, 0].sum(dtype=np.uint32)


@needs_executor
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_noise_is_uniform_and_differs_by_seed(probes, dtype):
    found = np.zeros((2, 20_001), np.uint16)
    for seed, to in enumerate(found):
        given = [to, np.uint64(to.size), np.float32(0.5), np.uint32(seed)]
        probes.run(f"noise_{dtype}", Grid(3, 256, 1, 0), given)
    first, second = references.values(found, dtype)
    assert np.abs(first).max() <= 0.5 and abs(first.mean()) < 0.01
    assert abs(first.std() - 0.5 / 3**0.5) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@needs_executor
@pytest.mark.parametrize("size", ceiling.MEETING_SIZES)
def test_meetings_happen_as_often_as_is_said(probes, size):
    met = np.zeros(size, np.uint32)
    probes.run("cluster_barrier", Grid(size, 288, size, 0), [met, np.int32(5)])
    assert (met == 5).all()
    probes.run("peer_load", Grid(size, 32, size, 128), [met, np.int32(6)])
    assert (met == 6).all()
    grid = Grid(size, 256, size, 16 + 3 * 4 * 132)
    for mode in (Mode(), Mode("starve_block", True), Mode("random")):
        probes.run(f"reduce_{size}", grid, [met, np.int32(7)], mode)
        assert (met == 7 * size).all()
    grid = Grid(size, 288, 1, 0, whole_grid=True)
    probes.run("grid_barrier", grid, [met, np.int32(3), np.zeros(1, np.uint32)])
    assert (met == 3).all()
