"""Distributed products by every algorithm, from the graph down: interpreted and as NumPy programs.

Tolerances: a sum of k products is off by at most k roundings of its accumulator, relative to the
sum of the absolute products; f16 operands are rounded to f16 before the reference is computed.
"""

from functools import cache

import numpy as np
import pytest
from reduced import crossed

from meshc.backends.meshes import algorithm_settings
from meshc.backends.python import HostFacts, emit, load_program
from meshc.backends.request import spec
from meshc.devices import device
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.tile import TileMachine
from meshc.ir.clone import clone_module
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

ALGORITHMS = ("cyclic_shift", "cannon", "summa", "allgather", "transposed")
MESHES = ("1x1", "2x2", "3x3", "4x4", "5x5", "4x6", "6x4", "1x5", "5x1")
SIZES = ((7, 9, 5), (16, 24, 8), (3, 17, 2), (2, 5, 13))
RANDOM = np.random.default_rng(2)


@cache
def product(mesh, size, algo, align="", dtype="f32", accumulate="f32", weight=False):
    """The tile-level module of C = A B; ``weight`` makes B a constant, else it is an input."""
    m, k, n = size
    dims = "N, K" if algo == "transposed" else "K, N"
    options = f"phase = main, dtype = {dtype}, accumulate = {accumulate}"
    settings = algorithm_settings(gemm=algo)
    settings["partition"] = spec("partition", {"grid": mesh, "gemm": algo, "align": align})
    text = f"""module @product level(graph) {{
      dims M = {m}, K = {k}, N = {n}
      options {options}
      func @main(in %a: {dtype}[M, K], {"weight" if weight else "in"} %b: {dtype}[{dims}])
          -> ({dtype}[M, N]) {{
        %c = graph.matmul %a, %b {{contract = [K]}} : {dtype}[M, N]
        graph.return %c
      }}
    }}"""
    module = parse_module(Source("product.meshir", text))
    module.device = device("ideal")
    return PassManager(pipeline_to("tile", settings)).run(module)


def operands(size, algo, dtype="f32"):
    """A and B as the program takes them, and their product."""
    m, k, n = size
    kind = np.float16 if dtype == "f16" else np.float32
    a, b = (RANDOM.standard_normal(s).astype(kind).astype(np.float32) for s in ((m, k), (k, n)))
    bound = np.abs(a) @ np.abs(b)
    return {"a": a, "b": b.T if algo == "transposed" else b}, a.astype(np.float64) @ b, bound


def interpreted(module, inputs, executor=("early", "round-robin")):
    machine = TileMachine(module, *executor)
    for name, array in inputs.items():
        machine.load(name, array)
    (result,) = machine.run().values()
    return result


@pytest.mark.parametrize(("mesh", "algo"), crossed(MESHES, ALGORITHMS))
def test_products_of_inputs(mesh, algo):
    for number, size in enumerate(SIZES):
        module = product(mesh, size, algo, align=("", "host")[number % 2])
        check_claims(module)
        inputs, expected, bound = operands(size, algo)
        executor = (("early", "round-robin"), ("late", f"random({number})"))[number // 2]
        got = interpreted(module, inputs, executor)
        assert np.all(np.abs(got - expected) <= 2.0**-23 * size[1] * bound)


@pytest.mark.parametrize("algo", ALGORITHMS[:4])
@pytest.mark.parametrize("align", ["", "device"])
@pytest.mark.parametrize("mesh", ["3x3", "4x6", "1x5", "5x1"])
def test_products_with_weights(mesh, algo, align):
    """Run twice: what moves does not get lost."""
    size = SIZES[0]
    module = product(mesh, size, algo, align, weight=True)
    machine = TileMachine(module, "late", "random(3)")
    for turn in range(2):
        inputs, _, _ = operands(size, algo)
        if turn == 0:
            weight = inputs["b"]
            machine.load("b", weight)
        machine.load("a", inputs["a"])
        (got,) = machine.run().values()
        bound = np.abs(inputs["a"]) @ np.abs(weight)
        assert np.all(np.abs(got - inputs["a"] @ weight) <= 2.0**-23 * 2 * size[1] * bound)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("accumulate", ["f16", "f32"])
def test_half_precision(algo, accumulate):
    size = (8, 40, 6)
    module = product("4x4", size, algo, dtype="f16", accumulate=accumulate)
    inputs, expected, bound = operands(size, algo, "f16")
    error = np.abs(interpreted(module, inputs) - expected) / bound
    digits = 2.0**-11 if accumulate == "f16" else 2.0**-24
    assert error.max() <= digits * size[1]


@pytest.mark.parametrize(
    ("mesh", "algo"), crossed(["3x3", "4x6", "8x8", "1x5"], ALGORITHMS, times=2)
)
def test_emitted_programs_compute_the_same(mesh, algo, tmp_path):
    size = (11, 13, 9)
    module = product(mesh, size, algo)
    for path, text in emit({"main": module}, HostFacts("test")).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    program = load_program(tmp_path).load({})
    for _ in range(2):
        inputs, expected, bound = operands(size, algo)
        (got,) = program.run(inputs).values()
        np.testing.assert_allclose(got, interpreted(module, inputs), rtol=1e-5, atol=1e-5)
        assert np.all(np.abs(got - expected) <= 2.0**-23 * size[1] * bound)


def test_alignment_goes_at_most_half_around():
    """The slowest row of the alignment on n cores turns by n/2 chunks, and both ways are used."""
    for mesh, half in (("4x4", 2), ("5x5", 2), ("8x8", 4)):
        module = product(mesh, (16, 16, 16), "cyclic_shift")
        (turn, *_) = module.program.body.ops
        assert turn.count.constant == half
        assert {c.name for c in module.channels} == {"ring_x", "back_x", "ring_y", "back_y"}


def test_the_host_can_align_both_operands():
    module = product("4x4", (16, 16, 16), "cyclic_shift", "host")
    assert [c.name for c in module.channels] == ["ring_x", "ring_y"]
    assert len(module.buffers) == 3


def test_inputs_are_not_copied():
    module = product("4x4", (16, 16, 16), "cyclic_shift")
    kernels = [getattr(op, "kernel", "") for op in module.walk()]
    assert kernels.count("copy") == kernels.count("rotate") == 0
    assert sum(b.type.bytes for b in module.buffers) == 4 * (2 * 16 + 2 * 16 + 16)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(MeshcError, match="no gemm 'strassen' of partition"):
        product("2x2", SIZES[0], "strassen")


@pytest.mark.parametrize("mesh", ["1x3", "2x3", "3x1"])
def test_a_row_times_what_was_computed_of_a_weight(mesh):
    """The other product says how the weight lies, and the row comes to where its lanes are."""
    text = """module @m level(graph) {
      dims M = 1, N = 5, K = 7
      options phase = main, dtype = f32, accumulate = f32
      func @main(in %x: f32[M, N], in %u: f32[M, N], weight %w: f32[N, K], weight %b: f32[N, K])
          -> (f32[M, K], f32[M, K]) {
        %first = graph.matmul %u, %w {contract = [N]} : f32[M, K]
        %v = graph.mul %w, %b : f32[N, K]
        %second = graph.matmul %x, %v {contract = [N]} : f32[M, K]
        graph.return %first, %second
      }
    }"""
    given = parse_module(Source("m", text))
    given.device = device("ideal")
    passes = parse_pipeline(f"canonicalize,eliminate-transpose,partition{{grid={mesh}}}")
    laid = PassManager(passes).run(clone_module(given))
    trace = random_trace(given, 1)
    check_outcomes(given, laid, run_trace(given, trace), run_trace(laid, trace))
