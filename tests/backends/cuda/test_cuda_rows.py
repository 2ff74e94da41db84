"""Products by rows and lookups in the executor against float64, in every schedule and copy mode."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from decode_reference import from_kind, to_kind
from reduced import crossed

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, modes
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct, plan, text
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.packing import gated, in_fragments
from meshc.devices import device

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(shape, cores, cluster, toolchain=QUICK):
    return Library(
        text(plan(shape, H200.with_numbers(cores=cores), cluster), "product"), toolchain=toolchain
    )


# Of the largest magnitude of a result, by how many bits inputs have (mc_fragments.cuh).
BOUNDS = {("f16", True): 2e-6, ("bf16", True): 1e-5, ("f16", False): 1e-3, ("bf16", False): 8e-3}
CASES = {
    "gated": RowsProduct(1, 320, 90, "f16", "normed", "gated", 1e-5),
    "gated by gelu, three requests": RowsProduct(
        3, 256, 64, "bf16", "normed", "gated", 1e-6, "gelu_tanh"
    ),
    "gated by exact gelu": RowsProduct(2, 256, 64, "f16", "normed", "gated", 1e-6, "gelu_erf"),
    "activated": RowsProduct(1, 128, 90, "f16", "normed", "activated", 1e-5, "gelu_erf", True),
    "activated by silu": RowsProduct(2, 64, 33, "bf16", "normed", "activated", 1e-5),
    "residual, wide rows": RowsProduct(1, 5000, 40, "f16", "plain", "residual"),
    "residual, sixteen requests": RowsProduct(16, 512, 24, "f16", "plain", "residual", factor=0.22),
    "logits": RowsProduct(2, 192, 1001, "bf16", "normed", "stored", 1e-5),
    "bias": RowsProduct(1, 2048, 33, "f16", "plain", "stored", bias=True, factor=0.6),
    "a row is more than a tile": RowsProduct(1, 20000, 5, "f16", "plain", "stored"),
    "gated, five requests": RowsProduct(5, 200, 300, "bf16", "normed", "gated", 1e-5),
    "logits, sixteen requests": RowsProduct(16, 264, 209, "bf16", "normed", bias=True),
}


def inputs(shape):
    rng = np.random.default_rng(0)
    width = shape.width**-0.5
    return {
        "input": rng.standard_normal((shape.batch, shape.width)).astype(np.float32),
        "gain": to_kind(rng.standard_normal(shape.width), shape.dtype),
        "matrix": to_kind(rng.standard_normal((shape.rows, shape.width)) * width, shape.dtype),
        "bias": to_kind(rng.standard_normal(shape.rows), shape.dtype),
        "sums": rng.standard_normal((shape.batch, shape.rows)).astype(np.float32),
    }


def want(shape, given):
    x = given["input"].astype(np.float64)
    if shape.input == "normed":
        scale = 1 / np.sqrt((x**2).mean(1, keepdims=True) + shape.epsilon)
        x = x * scale * from_kind(given["gain"], shape.dtype)
    y = x @ from_kind(given["matrix"], shape.dtype).T
    if shape.bias:
        y = y + from_kind(given["bias"], shape.dtype)
    y = y * shape.factor
    if shape.output == "residual":
        return y + given["sums"]
    if shape.output == "stored":
        return y
    if shape.output == "activated":
        return ACTIVATIONS[shape.activation](y)
    return ACTIVATIONS[shape.activation](y[:, 0::2]) * y[:, 1::2]


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_erf": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_tanh": gelu_tanh,
}


def close(output, exact, shape):
    bound = BOUNDS[shape.dtype, shape.batch <= 4] * np.abs(exact).max()
    return np.abs(output - exact).max() <= bound


BLOCKS = [(1, 1), (5, 1), (6, 2), (16, 4), (8, 8)]


@pytest.mark.parametrize("count", [1, 6, 9])
@pytest.mark.parametrize("kind", ["normed", "plain"])
def test_of_many_vectors_the_last_is_taken(kind, count):
    """Where the number in memory says; the bits are those of that vector alone."""
    one = RowsProduct(1, 192, 70, "bf16", kind, "stored", 1e-5)
    given = inputs(replace(one, batch=9))
    chosen = plan(one, H200.with_numbers(cores=5), 1)
    rest = [given["gain"]] if kind == "normed" else []
    rest += [np.ascontiguousarray(in_fragments(given["matrix"]))]
    grid, outputs = Grid(chosen.blocks, THREADS, 1, chosen.arena.bytes), []
    for shape, read in (
        (one, [given["input"][count - 1].copy()]),
        (replace(one, last=True), [given["input"], np.array([count], np.int32)]),
    ):
        outputs.append(np.full((1, one.rows), np.nan, np.float32))
        library(shape, 5, 1).run("product", grid, [*read, *rest, outputs[-1]], lint=True)
    assert (outputs[0] == outputs[1]).all()


@pytest.mark.parametrize(("name", "blocks"), crossed([*CASES], BLOCKS))
def test_products_in_all_modes(name, blocks):
    cores, cluster = blocks
    shape = CASES[name]
    chosen, given = plan(shape, H200.with_numbers(cores=cores), cluster), inputs(shape)
    order = ["input", *(["gain"] if shape.input == "normed" else []), "matrix"]
    order += ["bias"] if shape.bias else []
    exact = want(shape, given)
    given["matrix"] = np.ascontiguousarray(in_fragments(given["matrix"]))
    grid = Grid(chosen.blocks, THREADS, cluster, chosen.arena.bytes)
    results = set()
    for mode in modes():
        output = np.full(exact.shape, np.nan, np.float32)
        sums = given["sums"].copy()
        residual = [sums] if shape.output == "residual" else []
        arguments = [*(given[n] for n in order), *residual, output]
        counts = library(shape, cores, cluster).run("product", grid, arguments, mode, lint=True)
        assert close(output, exact, shape), mode
        assert counts.shared_load_cycles == counts.shared_loads
        assert counts.copied_bytes == given["matrix"].nbytes
        assert counts.dsmem_bytes == chosen.dsmem_bytes
        assert shape.output != "residual" or not sums.any()
        results.add(output.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_from_zero(activation):
    """A vector of ones times rows of eight times one value each."""
    values = np.array([-30, -12, -6, -4, -2, -1, -0.5, 0.0, 0.5, 1, 2, 4, 12, 30, 131072.0])
    shape = RowsProduct(1, 8, len(values), "f16", "normed", "activated", 0.0, activation)
    chosen = plan(shape, H200.with_numbers(cores=1), 1)
    ones, gain = np.ones((1, 8), np.float32), to_kind(np.ones(8), "f16")
    rows = to_kind(np.repeat(values[:, None] / 8, 8, axis=1), "f16")
    matrix = np.ascontiguousarray(in_fragments(rows))
    found = np.full((1, len(values)), np.nan, np.float32)
    grid = Grid(chosen.blocks, THREADS, 1, chosen.arena.bytes)
    library(shape, 1, 1).run("product", grid, [ones, gain, matrix, found])
    exact = ACTIVATIONS[activation](values)
    assert (np.abs(found[0] - exact) <= 6e-7 * np.maximum(1, np.abs(exact))).all()


@pytest.mark.parametrize(
    "shape",
    [
        RowsProduct(1, 4096, 2112, "f16", "normed", "gated", 1e-5),
        RowsProduct(16, 4096, 352, "bf16", "normed", "gated", 1e-5),
        RowsProduct(16, 11008, 128, "f16", "plain", "residual"),
    ],
    ids=["one request", "sixteen requests", "sixteen wide requests"],
)
def test_products_at_the_width_of_llama_2(shape):
    chosen, given = plan(shape, H200), inputs(shape)
    order = ["input", "gain", "matrix"] if shape.input == "normed" else ["input", "matrix", "sums"]
    exact = want(shape, given)
    given["matrix"] = np.ascontiguousarray(in_fragments(given["matrix"]))
    output = np.full(exact.shape, np.nan, np.float32)
    grid = Grid(chosen.blocks, THREADS, chosen.cluster, chosen.arena.bytes)
    library(shape, 132, 0, CXX).run("product", grid, [*(given[n] for n in order), output])
    assert close(output, exact, shape)


def test_clusters_share_the_width_for_balance_and_room():
    def cluster(batch, width, rows):
        return plan(RowsProduct(batch, width, rows, "f16"), H200).cluster

    # 133 row groups: 2 for one of 132 blocks, or 1.5; 1376 are 11 for some, or 10.5 for all, which
    # sums between blocks would cost more than they save.
    assert cluster(1, 4096, 133 * 16) == 2
    assert cluster(1, 4096, 22016) == 1
    assert cluster(1, 4096, 132 * 16 * 3) == 1
    # Vectors of 8 x 11008 values of two bytes leave no room in one block.
    assert cluster(8, 11008, 4096) > 1
    assert cluster(16, 11008, 4096) > cluster(8, 11008, 4096)


def test_gates_and_values_are_packed_in_turn():
    gates, values = np.arange(6).reshape(2, 3), -np.arange(6).reshape(2, 3)
    packed = gated(gates, values)
    assert (packed[0::2] == gates.T).all() and (packed[1::2] == values.T).all()


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
    ("shape", "words"),
    [
        (RowsProduct(1, 100, 8, "f16"), "no whole number of eights"),
        (RowsProduct(1, 64, 7, "f16", "normed", "gated", 1e-5), "no pairs"),
        (RowsProduct(16, 65536, 64, "f16", "normed", "stored", 1e-5), "leave no room"),
    ],
)
def test_shapes_that_do_not_fit(shape, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(shape, H200)
