"""Logits and lookups of a chunk in the executor against float64, in every order and copy mode."""

from functools import cache

import numpy as np
import pytest
from kernel_reference import from_kind, to_kind
from reduced import crossed

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, modes
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.head.kernel import Head, plan, text
from meshc.backends.cuda.packing import in_fragments
from meshc.devices import device

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(shape, cores, toolchain=QUICK):
    return Library(text(plan(shape, H200.with_numbers(cores=cores)), "head"), toolchain=toolchain)


# Of the largest magnitude of a result, by how many bits inputs have (mc_fragments.cuh).
BOUNDS = {"f16": 2e-6, "bf16": 1e-5}
CASES = {
    "normed": Head(192, 1001, "bf16", True, 1e-5),
    "normed, times a factor": Head(320, 90, "f16", True, 1e-6, 0.22),
    "of ranks": Head(2048, 33, "f16", False, factor=0.6),
    "a row is more than a tile": Head(20000, 5, "bf16", False),
    "no whole groups": Head(264, 209, "f16", False),
}


def inputs(shape, count=3):
    rng = np.random.default_rng(0)
    width = shape.width**-0.5
    return {
        "input": rng.standard_normal((count, shape.width)).astype(np.float32),
        "gain": to_kind(rng.standard_normal(shape.width), shape.dtype),
        "matrix": to_kind(rng.standard_normal((shape.rows, shape.width)) * width, shape.dtype),
    }


def run(shape, cores, count, mode=None, toolchain=QUICK):
    """The logits of the last of ``count`` rows of three, and what was counted."""
    chosen, given = plan(shape, H200.with_numbers(cores=cores)), inputs(shape)
    x = given["input"]
    many = [x, np.array([count], np.int32), given["gain"]]
    read = many if shape.normed else [x[count - 1].copy()]
    matrix = np.ascontiguousarray(in_fragments(given["matrix"]))
    output = np.full((1, shape.rows), np.nan, np.float32)
    grid = Grid(chosen.blocks, THREADS, 1, chosen.arena.bytes)
    kernel = library(shape, cores, toolchain)
    counts = kernel.run("head", grid, [*read, matrix, output], *([mode] if mode else []), lint=True)
    assert counts.copied_bytes == matrix.nbytes
    return output[0], counts


def want(shape, count):
    given = inputs(shape)
    x = given["input"][count - 1].astype(np.float64)
    if shape.normed:
        x = x / np.sqrt((x**2).mean() + shape.epsilon) * from_kind(given["gain"], shape.dtype)
    return shape.factor * (from_kind(given["matrix"], shape.dtype) @ x)


@pytest.mark.parametrize(("name", "cores"), crossed([*CASES], [1, 5, 16]))
def test_logits_in_all_modes(name, cores):
    """Of many vectors the last is taken, where the number in memory says."""
    shape = CASES[name]
    for count in (1, 3):
        exact, results = want(shape, count), set()
        for mode in modes() if count > 1 else (None,):
            output, counts = run(shape, cores, count, mode)
            assert np.abs(output - exact).max() <= BOUNDS[shape.dtype] * np.abs(exact).max()
            assert counts.shared_load_cycles == counts.shared_loads
            results.add(output.tobytes())
        assert len(results) == 1


def test_rings_keep_memory_busy_beside_a_second_block():
    """At the widths of published models; a small vocabulary has fewer row groups than blocks."""
    for width, rows in ((4096, 32000), (8192, 128256), (576, 49152)):
        chosen = plan(Head(width, rows, "bf16", True), H200)
        assert chosen.blocks == 132 and chosen.arena.bytes <= (228 * 1024 // 2) - 1024
        flying = (chosen.stages - 1) * chosen.tile_blocks * 512
        assert flying >= H200.bytes_in_flight or chosen.stages == 6
    assert plan(Head(64, 100, "f16", True), H200).blocks == 7


@pytest.mark.parametrize(("dtype", "factor"), [("f16", 1.0), ("bf16", 12.3)])
def test_lookups(dtype, factor):
    table = to_kind(np.random.default_rng(0).standard_normal((50, 264)), dtype)
    tokens = np.array([7, 0, 49, 50, -1], np.int32)
    residual, sums = np.full((2, 5, 264), np.nan, np.float32)
    kernel = Library(embed.text("embed", 264, 50, dtype, factor=factor), toolchain=QUICK)
    fragments = np.ascontiguousarray(in_fragments(table))
    kernel.run("embed", Grid(5, 256, 1, 0), [tokens, fragments, residual, sums])
    wanted = np.float32(factor) * from_kind(table, dtype)[tokens[:3]].astype(np.float32)
    assert (residual[:3] == wanted).all()
    assert not residual[3:].any() and not sums.any()


@pytest.mark.parametrize(
    ("width", "words"), [(100, "no whole number of eights"), (65536, "leave no room")]
)
def test_widths_that_do_not_fit(width, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(Head(width, 8, "f16", True), H200)
