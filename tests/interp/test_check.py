"""Bounds, traces and sessions: the parts of --check."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from interp_model_texts import transformer
from interp_tile_texts import mesh_gemm, module_of

from meshc.interp.check import (
    Session,
    check_outcomes,
    check_same,
    compare,
    random_trace,
    reduction_length,
    run_any,
    run_trace,
    state_results,
)
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

ROOT = Path(__file__).parents[1]
RANDOM = np.random.default_rng(29)


@pytest.mark.parametrize(("dtype", "numpy_type"), [("f32", np.float32), ("f16", np.float16)])
@pytest.mark.parametrize("length", [8, 300, 4096])
def test_rounding_keeps_the_bound_and_mistakes_do_not(dtype, numpy_type, length):
    a, b = RANDOM.standard_normal((9, length)), RANDOM.standard_normal((length, 7))
    reference = a @ b
    total = np.zeros((9, 7), numpy_type)
    for k in range(length):
        total += np.outer(a[:, k], b[k]).astype(numpy_type)
    assert compare([reference], [total], dtype, length).agrees
    wrong = total.copy()
    wrong[[0, 1]] = wrong[[1, 0]]
    found = compare([reference], [wrong], "f32", length)
    assert not found.agrees and found.max_error > 100 * found.bound
    assert found.place.startswith("result 0[")


def test_shapes_numbers_of_results_and_infinities_count():
    one = np.ones(3)
    assert compare([one, one], [one, one], "f64", 1).max_error == 0
    assert not compare([one, one], [one], "f64", 1).agrees
    assert not compare([one], [np.ones(4)], "f64", 1).agrees
    assert not compare([one], [np.array([1, np.nan, 1])], "f16", 100).agrees
    assert not compare([one], [np.array([1, np.inf, 1])], "f16", 100).agrees
    masked = np.array([1, -np.inf])
    assert compare([masked], [masked], "f64", 1).agrees
    assert not compare([masked], [-masked], "f16", 1).agrees
    assert compare([np.zeros(0)], [np.zeros(0)], "f32", 1).agrees


def test_the_worst_result_is_reported():
    small = compare([np.ones(2), np.ones(2)], [np.ones(2), np.array([1, 3])], "f32", 1)
    assert small.place == "result 1[1]" and small.max_error == 2


def test_reduction_length_adds_up_over_ops_and_layers():
    # per layer: norms 2 E, products E + D + S + H D + E + F, softmax S; then norm and head.
    layer = 2 * 10 + 10 + 4 + 11 + 11 + 24 + 10 + 14
    assert reduction_length(transformer(1)) == 2 * layer + 10 + 10
    # Half types round once an op while sums are kept in f32; 19 ops a layer.
    assert reduction_length(transformer(1), "f16") == 2 * 19 + 3
    gemm = reduction_length(mesh_gemm(2, 3, 4, 18, 5))
    assert 18 <= gemm <= 10 * 18


def test_states_are_found_through_loops_and_appends():
    assert state_results(transformer(1).function) == {"ks": 1, "vs": 2}


def test_a_session_keeps_the_cache_from_step_to_step():
    decode, prefill = transformer(1), transformer(5)
    trace = random_trace(decode, 3, 4)
    assert [scalars["pos"] for _, scalars in trace.steps] == [0, 1, 2, 3]
    by_step = run_trace(decode, trace)
    rows = np.concatenate([inputs["x0"] for inputs, _ in trace.steps])
    (at_once,) = run_any(prefill, {**trace.constant, "x0": rows}, {"len": 4})
    np.testing.assert_allclose(np.concatenate(by_step), at_once, rtol=1e-9, atol=1e-12)


def test_decode_continues_what_prefill_left():
    decode, prefill = transformer(1), transformer(5)
    trace = random_trace(decode, 3, 5)
    rows = [inputs["x0"] for inputs, _ in trace.steps]
    first, second = Session(prefill, trace.constant), Session(decode, trace.constant)
    first.step({"x0": np.concatenate(rows[:4])}, {"len": 4})
    second.adopt_state(first)
    (got,) = second.step({"x0": rows[4]}, {"pos": 4})
    np.testing.assert_allclose(got, run_trace(decode, trace)[4], rtol=1e-9, atol=1e-12)


def test_a_trace_holds_the_rows_the_host_looks_up():
    module = module_of(
        """module @m level(graph) {
          dims L = 3, V = 7, E = 4
          func @m(in %t: i32[L], weight %w: f32[V, E]) -> (f32[L, E]) {
            %x = graph.embed %t, %w {dim = V} : f32[L, E]
            graph.return %x
          }
        }"""
    )
    trace = random_trace(module, 5)
    ((inputs, _),) = trace.steps
    np.testing.assert_array_equal(inputs["x"], trace.constant["w"][inputs["t"]])
    np.testing.assert_array_equal(run_trace(module, trace)[0], inputs["x"])


def test_check_same_finds_a_pass_that_changed_the_meaning():
    before, after = transformer(1), transformer(1)
    assert check_same(before, after).max_error == 0
    for op in after.walk():
        if op.NAME == "graph.scale":
            op.factor = 0.25
    with pytest.raises(MeshcError, match=r"interp-mismatch.*result \d\[0, \d+\] is off by"):
        check_same(before, after)


def paired(text):
    return module_of(
        f"""module @m level(graph) {{
          dims L = 3, E = 4, D = 6
          {text}
          func @m(in %x: f32[L, E], weight %w: f32[E, D], weight %v: f32[E, D]) -> (f32[L, L2]) {{
            %q, %k = graph.matmul %x, %w, %v {{contract = [E]}} : f32[L, D], f32[L, D]
            %a = graph.rope %q {{dim = D, rows = L, theta = 9.0, style = STYLE}} : f32[L, D]
            %b = graph.rope %k {{dim = D, rows = L, theta = 9.0, style = STYLE}} : f32[L, D]
            %c = graph.mul %a, %b : f32[L, D]
            %d = graph.softmax %c {{dim = L}} : f32[L, D]
            %e = graph.matmul %d, %w {{contract = [D]}} : f32[L, E]
            graph.return %e
          }}
        }}""".replace("STYLE", "half" if "none" in text else "interleaved").replace("L2", "E")
    )


def test_weights_of_paired_lanes_stay_the_models_own_tensors():
    """Rotate-half on the tensors as they are, or interleaved pairs of reordered lanes: the same."""
    half, pairs = paired("options rope = none"), paired("paired w = D, v = D")
    assert check_same(half, pairs).max_error < 1e-12


def test_tile_modules_are_compared_through_their_ports():
    module = mesh_gemm(2, 3, 5, 7, 4)
    assert check_same(module, mesh_gemm(3, 2, 5, 7, 4)).agrees
    trace = random_trace(module, 1)
    (got,) = run_trace(module, trace, "late", "depth-first")
    ((inputs, _),) = trace.steps
    np.testing.assert_allclose(got, inputs["A"] @ trace.constant["B"], rtol=1e-4, atol=1e-5)


EXPERTS = (ROOT / "passes" / "expand_tasks" / "experts.meshir").read_text(encoding="utf-8")


def met_by(kind):
    """Tasks of a mixture, whose blocks meet so."""
    text = "module @" + EXPERTS.split("module @")[2]
    passes = parse_pipeline(f"place-tasks{{blocks=3}},meet{{kind={kind}}}")
    return PassManager(passes).run(parse_module(Source("experts", text)))


@pytest.mark.parametrize("seed", [1, 89])
def test_words_with_tags_have_two_bits_less(seed):
    """Whichever of both comes first: what is left of a word rounds by more than f32 does."""
    counted, tagged = met_by("counter"), met_by("tags")
    assert check_same(counted, tagged, seed).max_error > 0
    assert check_same(tagged, counted, seed).agrees
    unit = check_same(counted, counted, seed).bound
    assert check_same(counted, tagged, seed).bound == pytest.approx(4 * unit)


def test_a_word_that_loses_more_is_noticed():
    counted, trimmed = met_by("counter"), met_by("tags")
    wide = [b for b in trimmed.buffers if b.tags]
    assert wide
    trimmed.buffers = [replace(b, tags=8) if b.tags else b for b in trimmed.buffers]
    trace = random_trace(counted, 1)
    wanted, got = run_trace(counted, trace), run_trace(trimmed, trace)
    assert check_outcomes(counted, trimmed, wanted, got).agrees  # as it says of itself
    with pytest.raises(MeshcError, match="interp-mismatch"):
        check_outcomes(counted, met_by("tags"), wanted, got)
