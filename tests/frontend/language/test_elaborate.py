"""What a model becomes at the graph level: params, results, names, dims, scalars, structure."""

from __future__ import annotations

import pytest

from meshc.frontend.language import (
    elaborate,
    library_model,
    parse_model,
    phases,
    with_parameters,
)
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

SMALL = {"E": 48, "H": 6, "G": 2, "D": 8, "F": 64, "V": 100, "layers": 3}


def _module(text: str, phase: str = "main", **options: int) -> Module:
    return elaborate(parse_model(Source("case.mesh", text)), phase, **options)


def _main(body: str, inputs: str = "x[B, L, E]", before: str = "") -> str:
    head = "model m(E=64, H=8, G=2, D=8, F=128, layers=2, eps=1e-5)"
    return f"{head} {{ {before} main({inputs}) {{ {body} }} }}"


def _ops(module: Module) -> list[str]:
    return [op.NAME.removeprefix("graph.") for op in module.walk()]


def _only(module: Module, kind: type[Op]) -> Op:
    (found,) = [op for op in module.walk() if isinstance(op, kind)]
    return found


def _params(module: Module, role: str) -> dict[str, str]:
    return {p.value.name: str(p.value.type) for p in module.function.params if p.role == role}


def _code(text: str, phase: str = "main", **options: int) -> str:
    with pytest.raises(MeshcError) as caught:
        _module(text, phase, **options)
    return caught.value.diagnostics[0].code


def test_attention_is_the_formula() -> None:
    module = _module(
        _main(
            "k = append(cache.k, x @ wk) v = append(cache.v, x @ wv) "
            "s = softmax((x @ wq) @ transpose(k) / sqrt(D), mask = causal) return (s @ v) @ wo",
            before="heads H share G param wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]",
        ),
        "decode",
        seq=10,
    )
    assert print_module(module).split("{\n", 2)[2] == (
        "    %k_1 = graph.matmul %x, %wk {contract = [E]} : f32[B, L, G, D]\n"
        "    %k = graph.append %cache_k, %k_1 {dim = S, rows = L} : f32[B, S, G, D]\n"
        "    %v_1 = graph.matmul %x, %wv {contract = [E]} : f32[B, L, G, D]\n"
        "    %v = graph.append %cache_v, %v_1 {dim = S, rows = L} : f32[B, S, G, D]\n"
        "    %s_1 = graph.matmul %x, %wq {contract = [E]} : f32[B, L, H, D]\n"
        "    %s_2 = graph.transpose %k {dims = [B, D, G, S]} : f32[B, D, G, S]\n"
        "    %s_3 = graph.matmul %s_1, %s_2 {contract = [D], group = [H, G]} : f32[B, L, H, S]\n"
        "    %s_4 = graph.scale %s_3 {factor = 0.35355339059327373} : f32[B, L, H, S]\n"
        "    %s = graph.softmax %s_4 {dim = S, mask = causal, rows = L} : f32[B, L, H, S]\n"
        "    %result_1 = graph.matmul %s, %v {contract = [S], group = [H, G]} : f32[B, L, H, D]\n"
        "    %result = graph.matmul %result_1, %wo {contract = [H, D]} : f32[B, L, E]\n"
        "    graph.return %result, %k, %v\n"
        "  }\n"
        "}\n"
    )


def test_decode_of_llama() -> None:
    module = elaborate(library_model("llama", SMALL), "decode", seq=32, batch=2)
    assert (module.name, module.level, module.function.name) == ("llama_decode", "graph", "decode")
    assert module.dims == {"B": 2, "L": 1, "S": 32} | SMALL
    assert module.scalars == {"pos": (0, 31)}
    assert module.options == {
        "model": "llama",
        "phase": "decode",
        "weights": "bf16",
        "accumulate": "f32",
        "seq": 32,
    }
    assert _params(module, "in") == {"tokens": "i32[B, L]"}
    weights = _params(module, "weight")
    assert list(weights)[:4] == ["embedding", "final_norm", "lm_head", "attn_norm"]
    assert weights["wk"] == "bf16[layers, E, G, D]"
    cache = "bf16[layers, B, S, G, D]"
    assert _params(module, "state") == {"cache_k": cache, "cache_v": cache}
    assert list(map(str, module.function.result_types)) == ["bf16[B, L, V]", cache, cache]


def test_prefill_of_llama_leaves_the_head_out() -> None:
    module = elaborate(library_model("llama", SMALL), "prefill", seq=32)
    assert module.scalars == {"len": (1, 32)}
    assert module.dims["L"] == module.dims["S"] == 32
    assert not {"final_norm", "lm_head"} & set(_params(module, "weight"))
    assert str(module.function.result_types[0]) == "bf16[B, L, E]"


def test_layers_are_one_repeat() -> None:
    module = elaborate(library_model("llama", SMALL), "decode", seq=32)
    loop = _only(module, graph.Repeat)
    assert isinstance(loop, graph.Repeat)
    assert (loop.dim, loop.carried) == ("layers", 1)
    (body,) = loop.regions
    assert len(body.args) == len(loop.operands) == 1 + 9 + 2
    assert len(loop.results) == 3
    assert isinstance(body.ops[-1], graph.Yield)
    assert [str(a.type) for a in body.args[:2]] == ["bf16[B, L, E]", "bf16[E]"]


@pytest.mark.parametrize(
    ("variant", "wanted", "unwanted"),
    [
        ({"tied": True}, set(), {"lm_head"}),
        ({"tied": False}, {"lm_head"}, set()),
        ({"attention_bias": True}, {"bq", "bk", "bv"}, {"bo"}),
        ({"o_bias": True}, {"bo"}, {"bq"}),
        ({"mlp_bias": True}, {"b_gate", "b_up", "b_down"}, {"bo"}),
    ],
)
def test_variants_of_llama(variant: dict[str, bool], wanted: set[str], unwanted: set[str]) -> None:
    module = elaborate(library_model("llama", SMALL | variant), "decode", seq=8)
    weights = set(_params(module, "weight"))
    assert wanted <= weights
    assert not unwanted & weights


@pytest.mark.parametrize(
    ("activation", "op", "form"),
    [("silu", graph.Silu, ""), ("gelu", graph.Gelu, "erf"), ("gelu_tanh", graph.Gelu, "tanh")],
)
def test_activations(activation: str, op: type[Op], form: str) -> None:
    for family in ("llama", "qwen2"):
        model = library_model(family, SMALL | {"activation": activation})
        found = _only(elaborate(model, "decode", seq=8), op)
        assert getattr(found, "form", "") == form


def test_unknown_activation_is_refused() -> None:
    model = library_model("llama", SMALL | {"activation": "tanh"})
    with pytest.raises(MeshcError, match="missing-return"):
        elaborate(model, "decode", seq=8)


def test_rope_scaling_reaches_the_op() -> None:
    scaling = {"scaling": "llama3", "factor": 8.0, "original_max_position": 4096, "theta": 5e5}
    module = elaborate(library_model("qwen2", SMALL | scaling), "prefill", seq=8)
    ropes = [op for op in module.walk() if isinstance(op, graph.Rope)]
    assert len(ropes) == 2
    for rope in ropes:
        assert (rope.scaling, rope.factor, rope.original_max_position) == ("llama3", 8.0, 4096)
        assert (rope.low_freq_factor, rope.high_freq_factor, rope.theta) == (1.0, 4.0, 500000.0)


def test_qwen2_has_biases_of_q_k_v() -> None:
    weights = _params(elaborate(library_model("qwen2", SMALL), "decode", seq=8), "weight")
    assert (weights["bq"], weights["bk"]) == ("bf16[layers, H, D]", "bf16[layers, G, D]")


def test_first_layers_only() -> None:
    model = library_model("llama", SMALL)
    assert elaborate(model, "decode", seq=8, layers=2).dims["layers"] == 2
    with pytest.raises(MeshcError, match="has no 4 layers"):
        elaborate(model, "decode", seq=8, layers=4)


def test_text_round_trips_and_is_deterministic() -> None:
    model = library_model("llama", SMALL | {"attention_bias": True, "tied": True})
    for phase in phases(model):
        text = print_module(elaborate(model, phase, seq=8))
        assert text == print_module(elaborate(model, phase, seq=8))
        assert print_module(parse_module(Source("t.meshir", text))) == text


def test_every_op_has_its_place() -> None:
    module = elaborate(library_model("llama", SMALL), "decode", seq=8)
    names = {op.span.source.name for op in module.walk() if op.span}
    assert all(op.span is not None for op in module.walk())
    assert names == {"<library>/llama.mesh", "<library>/blocks.mesh"}


def test_names_come_from_the_user_and_are_unique() -> None:
    module = _module(_main("x = x + x x = silu(x) y = x * x return y"), seq=4)
    names = [v.name for op in module.walk() for v in op.results]
    assert names == ["x_1", "x_2", "y"]


def test_weight_keeps_its_name_whatever_blocks_use() -> None:
    block = "block f(x[B, L, E]) { w = x + x return w }"
    module = _module(_main("return f(x) @ w", before=f"param w[E, F] {block}"), seq=4)
    assert list(_params(module, "weight")) == ["w"]


def test_unused_params_are_left_out() -> None:
    assert _params(_module(_main("return x", before="param w[E]"), seq=4), "weight") == {}


def test_main_phase_takes_rows_from_seq_or_head() -> None:
    text = "model m(L=5, E=4) { main(x[L, E]) { return x + x } }"
    assert _module(text).dims == {"L": 5, "E": 4}
    assert _module(text, seq=7).dims == {"L": 5, "E": 4}
    assert _module(_main("return x"), seq=7).dims == {"B": 1, "L": 7, "E": 64}
    assert _code(_main("return x")) == "bad-extent"


def test_batch_of_the_head_is_a_default() -> None:
    text = "model m(B=3, E=4) { main(x[B, E]) { return x + x } }"
    assert _module(text).dims["B"] == 3
    assert _module(text, batch=2).dims["B"] == 2


def test_phases_follow_from_caches() -> None:
    plain = parse_model(Source("m", _main("return x")))
    cached = parse_model(Source("m", _main("return append(cache.x, x)")))
    unused = parse_model(Source("m", "use blocks\n" + _main("return x")))
    assert phases(plain) == phases(unused) == ("main",)
    assert phases(cached) == ("prefill", "decode")
    assert _code(_main("return x"), "decode") == "bad-phase"


def test_cache_outside_a_repeat_is_not_stacked() -> None:
    module = _module(_main("return append(cache.x, x)"), "decode", seq=6)
    assert _params(module, "state") == {"cache_x": "f32[B, S, E]"}


def test_second_cache_of_a_block() -> None:
    text = _main(
        "return f(f(x), cache = other)",
        before="block f(x[B, L, E]) { k = append(cache.k, x) "
        "return softmax(x @ transpose(k), mask = causal) @ k }",
    )
    assert list(_params(_module(text, "decode", seq=6), "state")) == ["cache_k", "cache_other_k"]
    assert _code(text.replace(", cache = other", ""), "decode", seq=6) == "cache-reuse"


def test_repeats_that_differ_have_params_and_caches_of_their_own() -> None:
    body = (
        "repeat layers { param a[E] x = x * a k = append(cache.k, x) } "
        "repeat more { param b[E] x = x * b k = append(cache.k, x) } return x"
    )
    text = _main(body).replace("layers=2", "layers=2, more=3")
    module = _module(text, "decode", seq=6)
    assert _params(module, "weight") == {"a": "f32[layers, E]", "b": "f32[more, E]"}
    states = _params(module, "state")
    assert states == {"cache_k": "f32[layers, B, S, E]", "cache_k_1": "f32[more, B, S, E]"}


def test_outer_values_go_through_a_repeat() -> None:
    text = _main("y = x + x repeat layers { x = x * y @ w } return x", before="param w[E, E2]")
    assert _code(text.replace("E=64,", "E=64, E2=E,"), seq=4) == "dims-mismatch"
    module = _module(
        _main("y = x + x repeat layers { x = x * y * g } return x", before="param g[E]"), seq=4
    )
    loop = _only(module, graph.Repeat)
    assert isinstance(loop, graph.Repeat)
    assert loop.carried == 3
    (body,) = loop.regions
    assert body.ops[-1].operands[1:] == body.args[1:]


def test_value_of_a_repeat_that_is_not_needed_later_is_not_carried() -> None:
    body = "h = x + x x = h repeat layers { h = silu(x) x = x + h } return x"
    loop = _only(_module(_main(body), seq=4), graph.Repeat)
    assert isinstance(loop, graph.Repeat)
    assert loop.carried == 1


def test_names_of_dims_in_a_block_stand_for_those_of_the_caller() -> None:
    module = _module(
        _main(
            "return f(f(x, w), u)",
            before="param w[E, F], u[F, E] block f(x[B, L, N], w[N, M]) -> [B, L, M] "
            "{ y[B, L, M] = x @ w return y / M }",
        ),
        seq=4,
    )
    factors = [op.factor for op in module.walk() if isinstance(op, graph.Scale)]
    assert factors == [1 / 128, 1 / 64]


def test_library_block_of_mha_takes_query_heads_for_keys() -> None:
    text = "use blocks\n" + _main(
        "return gqa_attention(x @ wq, x @ wk, x @ wk)", before="param wq[E, H, D], wk[E, H, D]"
    )
    module = _module(text, "decode", seq=4)
    assert all(op.group == () for op in module.walk() if isinstance(op, graph.Matmul))


@pytest.mark.parametrize("name", ["mha_attention", "mqa_attention"])
def test_other_attention_blocks(name: str) -> None:
    heads = "H, " if name == "mha_attention" else ""
    text = "use blocks\n" + _main(
        f"return {name}(x @ wq, x @ wk, x @ wk)",
        before=f"param wq[E, H, D], wk[E, {heads}D]",
    )
    assert str(_module(text, "decode", seq=4).function.result_types[0]) == "f32[B, L, H, D]"


def test_constants_fold() -> None:
    body = "if not (H == 8 and eps < 1) or H / G != 4 { return x } return x * (2 * H - 1) / 4 - x"
    module = _module(_main(body), seq=4)
    assert _ops(module) == ["scale", "scale", "scale", "add", "return"]
    factors = [op.factor for op in module.walk() if isinstance(op, graph.Scale)]
    assert factors == [15.0, 0.25, -1.0]


def test_smaller_side_is_spread_whichever_it_is() -> None:
    module = _module(_main("return w * (w + x)", before="param w[E]"), seq=4)
    for op in module.walk():
        if isinstance(op, graph.Add | graph.Mul):
            assert [len(v.type.dims) for v in op.tensors()] == [3, 1]  # type: ignore[union-attr]


def test_parameters_can_be_given() -> None:
    model = parse_model(Source("m", _main("return x")))
    assert elaborate(model, "main", seq=3, parameters={"E": 10}).dims["E"] == 10
    changed = with_parameters(model, {"E": 12, "eps": 1})
    assert elaborate(changed, "main", seq=3).dims["E"] == 12


@pytest.mark.parametrize("values", [{"Q": 1}, {"E": "text"}, {"E": 1.5}, {"E": True}, {"eps": "x"}])
def test_wrong_parameters_are_refused(values: dict[str, int | float | bool | str]) -> None:
    model = parse_model(Source("m", _main("return x")))
    with pytest.raises(MeshcError) as caught:
        with_parameters(model, values)
    assert caught.value.diagnostics[0].code == "bad-parameter"


def test_computed_default_can_be_replaced() -> None:
    sizes = {"E": 100, "H": 6, "G": 2}
    assert elaborate(library_model("llama", sizes | {"D": 8}), "decode", seq=4).dims["D"] == 8
    with pytest.raises(MeshcError, match="bad-extent"):
        elaborate(library_model("llama", sizes), "decode", seq=4)


def test_unknown_family_is_refused() -> None:
    with pytest.raises(MeshcError, match="no family 'gpt'"):
        library_model("gpt", {})


def test_absurd_seq_is_refused() -> None:
    model = library_model("llama", SMALL)
    for seq in (0, -1, 2**40):
        with pytest.raises(MeshcError, match="bad-extent"):
            elaborate(model, "decode", seq=seq)


def test_embedding_inside_a_block_makes_ids_of_the_input() -> None:
    text = _main(
        "return f(t, w)",
        inputs="t[B, L]",
        before="param w[F, E] block f(i[B, L], t[V, E]) { return embed(i, t) }",
    )
    assert _params(_module(text, seq=3), "in") == {"t": "i32[B, L]"}
