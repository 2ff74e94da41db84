"""Graph-level ops against plain NumPy."""

import math

import numpy as np
import pytest

from meshc.interp.graph import run_graph
from meshc.interp.inputs import random_inputs
from meshc.ir.parser import parse_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

RANDOM = np.random.default_rng(5)


def module_of(text):
    return parse_module(Source("test.meshir", text))


def one_op(params, result, line, dims="B = 1, L = 3, E = 4, H = 6, G = 2, D = 8, S = 7, V = 11"):
    """A module whose function returns the value(s) of one op."""
    names = line.split(" = ")[0]
    return module_of(
        f"module @t level(graph) {{\n dims {dims}\n func @f({params}) -> ({result}) {{\n"
        f"  {line}\n graph.return {names}\n }}\n}}"
    )


def run(module, scalars=None, **inputs):
    results = run_graph(module, inputs, scalars or {})
    return results[0] if len(results) == 1 else results


def test_matmul_matches_einsum_for_several_right_operands():
    module = one_op(
        "in %x: f32[L, E], weight %q: f32[E, H, D], weight %k: f32[E, G, D]",
        "f32[L, H, D], f32[L, G, D]",
        "%a, %b = graph.matmul %x, %q, %k {contract = [E]} : f32[L, H, D], f32[L, G, D]",
    )
    x, q, k = (RANDOM.standard_normal(s) for s in ((3, 4), (4, 6, 8), (4, 2, 8)))
    a, b = run(module, x=x, q=q, k=k)
    np.testing.assert_allclose(a, np.einsum("le,ehd->lhd", x, q))
    np.testing.assert_allclose(b, np.einsum("le,egd->lgd", x, k))


def test_matmul_of_grouped_heads_uses_entry_h_div_ratio():
    module = one_op(
        "in %q: f32[L, H, D], in %k: f32[S, G, D]",
        "f32[H, L, S]",
        "%s = graph.matmul %q, %k {contract = [D], group = [H, G]} : f32[H, L, S]",
    )
    q, k = RANDOM.standard_normal((3, 6, 8)), RANDOM.standard_normal((7, 2, 8))
    expected = np.stack([q[:, h] @ k[:, h // 3].T for h in range(6)])
    np.testing.assert_allclose(run(module, q=q, k=k), expected)


def test_matmul_contracts_two_dims_at_once():
    module = one_op(
        "in %o: f32[L, H, D], weight %w: f32[H, D, E]",
        "f32[L, E]",
        "%y = graph.matmul %o, %w {contract = [H, D]} : f32[L, E]",
    )
    o, w = RANDOM.standard_normal((3, 6, 8)), RANDOM.standard_normal((6, 8, 4))
    np.testing.assert_allclose(run(module, o=o, w=w), o.reshape(3, 48) @ w.reshape(48, 4))


def test_transpose_and_spread_operands():
    x, y = RANDOM.standard_normal((3, 4)), RANDOM.standard_normal(4)
    transpose = one_op(
        "in %x: f32[L, E]", "f32[E, L]", "%y = graph.transpose %x {dims = [E, L]} : f32[E, L]"
    )
    np.testing.assert_array_equal(run(transpose, x=x), x.T)
    add = one_op(
        "in %x: f32[L, E], in %y: f32[E]", "f32[L, E]", "%z = graph.add %x, %y : f32[L, E]"
    )
    np.testing.assert_array_equal(run(add, x=x, y=y), x + y)
    mul = one_op(
        "in %x: f32[L, E], in %y: f32[L]", "f32[L, E]", "%z = graph.mul %x, %y : f32[L, E]"
    )
    np.testing.assert_array_equal(run(mul, x=x, y=y[:3]), x * y[:3, None])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("graph.scale %x {factor = 0.5}", lambda x: x / 2),
        ("graph.silu %x", lambda x: x / (1 + math.exp(-x))),
        ("graph.gelu %x", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        (
            "graph.gelu %x {form = tanh}",
            lambda x: 0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_pointwise(line, expected):
    module = one_op("in %x: f32[L, E]", "f32[L, E]", f"%y = {line} : f32[L, E]")
    x = RANDOM.standard_normal((3, 4)) * 3
    np.testing.assert_allclose(run(module, x=x), np.vectorize(expected)(x), rtol=1e-12)


def test_rms_norm():
    module = one_op(
        "in %x: f32[L, E], weight %g: f32[E]",
        "f32[L, E]",
        "%y = graph.rms_norm %x, %g {dim = E, eps = 0.1} : f32[L, E]",
    )
    x, g = RANDOM.standard_normal((3, 4)), RANDOM.standard_normal(4)
    expected = [row / math.sqrt((row**2).sum() / 4 + 0.1) * g for row in x]
    np.testing.assert_allclose(run(module, x=x, g=g), expected)


def rope_pair(a, b, angle):
    turned = (a + 1j * b) * np.exp(1j * angle)
    return turned.real, turned.imag


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_turns_each_pair_by_its_position(style):
    module = one_op(
        "in %x: f32[L, H, D]",
        "f32[L, H, D]",
        f"%y = graph.rope %x {{dim = D, rows = L, theta = 100.0, style = {style}}} : f32[L, H, D]",
    )
    x = RANDOM.standard_normal((3, 6, 8))
    got = run(module, {"pos": 5}, x=x)
    for row in range(3):
        for i in range(4):
            a, b = (i, i + 4) if style == "half" else (2 * i, 2 * i + 1)
            wanted = rope_pair(x[row, :, a], x[row, :, b], (5 + row) * 100.0 ** (-2 * i / 8))
            np.testing.assert_allclose(got[row, :, a], wanted[0])
            np.testing.assert_allclose(got[row, :, b], wanted[1])


def test_rope_llama3_scaling_keeps_high_and_divides_low_frequencies():
    numbers = "factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0"
    module = one_op(
        "in %x: f32[L, D]",
        "f32[L, D]",
        "%y = graph.rope %x {dim = D, rows = L, theta = 500000.0, style = interleaved, "
        f"scaling = llama3, {numbers}, original_max_position = 8192}} : f32[L, D]",
    )
    x = np.tile([1.0, 0.0], 4)[None]
    got = run(module, {"pos": 1}, x=x)[0]
    plain = [500000.0 ** (-2 * i / 8) for i in range(4)]
    for i, frequency in enumerate(plain):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            scaled = frequency
        elif wavelength > 8192:
            scaled = frequency / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            scaled = (1 - smooth) * frequency / 8 + smooth * frequency
        assert got[2 * i] == pytest.approx(math.cos(scaled), rel=1e-12)
        assert got[2 * i + 1] == pytest.approx(math.sin(scaled), rel=1e-9)


def test_softmax_is_causal_from_pos_on():
    module = one_op(
        "in %s: f32[H, L, S]",
        "f32[H, L, S]",
        "%p = graph.softmax %s {dim = S, mask = causal, rows = L} : f32[H, L, S]",
    )
    s = RANDOM.standard_normal((6, 3, 7))
    got = run(module, {"pos": 2}, s=s)
    for row in range(3):
        seen = np.exp(s[:, row, : 3 + row])
        np.testing.assert_allclose(
            got[:, row, : 3 + row], seen / seen.sum(-1, keepdims=True), rtol=1e-12
        )
        assert (got[:, row, 3 + row :] == 0).all()


def test_softmax_without_mask_sums_to_one():
    module = one_op("in %s: f32[S, E]", "f32[S, E]", "%p = graph.softmax %s {dim = S} : f32[S, E]")
    np.testing.assert_allclose(run(module, s=RANDOM.standard_normal((7, 4))).sum(0), 1)


APPEND = one_op(
    "state %c: f32[S, D], in %n: f32[L, D]",
    "f32[S, D]",
    "%k = graph.append %c, %n {dim = S, rows = L} : f32[S, D]",
)


def test_append_replaces_rows_from_pos_on():
    cache, new = RANDOM.standard_normal((7, 8)), RANDOM.standard_normal((3, 8))
    got = run(APPEND, {"pos": 2}, c=cache, n=new)
    np.testing.assert_array_equal(got, np.concatenate([cache[:2], new, cache[5:]]))


def test_fewer_rows_than_the_dim_has():
    got = run(APPEND, {"pos": 0}, n=np.ones((2, 8)))
    np.testing.assert_array_equal(got, np.r_[np.ones((2, 8)), np.zeros((5, 8))])


def test_append_beyond_the_cache_is_diagnosed():
    with pytest.raises(MeshcError, match=r"rows 6 to 8 do not fit S = 7"):
        run(APPEND, {"pos": 6}, n=np.ones((3, 8)))


EMBED = one_op(
    "in %t: i32[B, L], weight %w: f32[V, E]",
    "f32[B, L, E]",
    "%x = graph.embed %t, %w {dim = V} : f32[B, L, E]",
)


def test_embed_takes_rows():
    table = RANDOM.standard_normal((11, 4))
    got = run(EMBED, t=np.array([[7, 0, 10]]), w=table)
    np.testing.assert_array_equal(got, table[None, [7, 0, 10]])


def test_token_id_outside_the_table_is_diagnosed():
    with pytest.raises(MeshcError, match=r"interp-input.*outside 0 \.\. 10"):
        run(EMBED, t=np.array([[7, 0, 11]]), w=np.zeros((11, 4)))


REPEAT = module_of(
    """module @t level(graph) {
      dims N = 3, E = 4, F = 6, S = 5, L = 1
      scalars pos = 0..4
      func @f(in %x: f32[L, E], weight %w: f32[N, E, F], state %c: f32[N, S, E])
          -> (f32[L, E], f32[N, S, E]) {
        %y, %k = graph.repeat %x, %w, %c {dim = N} : f32[L, E], f32[N, S, E]
            (%h: f32[L, E], %v: f32[E, F], %d: f32[S, E]) {
          %u = graph.matmul %h, %v {contract = [E]} : f32[L, F]
          %o = graph.matmul %u, %v {contract = [F]} : f32[L, E]
          %z = graph.append %d, %o {dim = S, rows = L} : f32[S, E]
          graph.yield %o, %z
        }
        graph.return %y, %k
      }
    }"""
)


def test_repeat_carries_stacks_and_collects():
    x, w = RANDOM.standard_normal((1, 4)), RANDOM.standard_normal((3, 4, 6))
    cache = np.zeros((3, 5, 4))
    y, k = run_graph(REPEAT, {"x": x, "w": w, "c": cache}, {"pos": 2})
    expected = x
    for layer in range(3):
        expected = expected @ w[layer] @ w[layer].T
        np.testing.assert_allclose(k[layer, 2], expected[0])
    np.testing.assert_allclose(y, expected)
    assert np.count_nonzero(k) == 3 * 4


def test_float32_is_computed_in_float32():
    x = np.full((1, 4), 1 / 3)
    y, _ = run_graph(REPEAT, {"x": x, "w": np.ones((3, 4, 6))}, {"pos": 0}, np.float32)
    assert y.dtype == np.float32


def test_an_op_of_another_level_is_refused():
    module = one_op("in %x: f32[L, E]", "f32[L, E]", "%y = mesh.silu %x : f32[L, E]")
    with pytest.raises(MeshcError, match="has no meaning at graph level"):
        run(module, x=np.ones((3, 4)))


@pytest.mark.parametrize(
    ("inputs", "scalars", "message"),
    [
        ({"w": np.ones((3, 4, 6))}, {"pos": 0}, "'x' of type .* is not given"),
        ({"x": np.ones((1, 5)), "w": np.ones((3, 4, 6))}, {"pos": 0}, r"shape \[1, 5\]"),
        ({"x": np.ones((1, 4)), "w": np.ones((3, 4))}, {"pos": 0}, r"shape \[3, 4\]"),
        ({"x": np.ones((1, 4)), "w": np.ones((3, 4, 6))}, {}, "'pos' is not given"),
        ({"x": np.ones((1, 4)), "w": np.ones((3, 4, 6))}, {"pos": 5}, r"outside 0 \.\. 4"),
    ],
)
def test_wrong_inputs_are_diagnosed(inputs, scalars, message):
    with pytest.raises(MeshcError, match=message):
        run_graph(REPEAT, inputs, scalars)


def test_random_inputs_fit_and_do_not_depend_on_each_other():
    inputs = random_inputs(REPEAT, 3)
    assert {n: a.shape for n, a in inputs.items()} == {
        "x": (1, 4),
        "w": (3, 4, 6),
        "c": (3, 5, 4),
    }
    assert not inputs["c"].any()
    run_graph(REPEAT, inputs, {"pos": 1})
    again = random_inputs(REPEAT, 3)
    np.testing.assert_array_equal(inputs["w"], again["w"])
    assert not np.array_equal(inputs["w"], random_inputs(REPEAT, 4)["w"])


def test_random_token_ids_lie_in_the_table_and_len_limits_rows():
    inputs = random_inputs(EMBED, 1)
    assert inputs["t"].min() >= 0 and inputs["t"].max() < 11
    assert random_inputs(APPEND, 1, {"len": 2})["n"].shape == (2, 8)
