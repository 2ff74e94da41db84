"""fuse-chunk on whole models, on random shapes, and on graphs that are almost what it fuses."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshc
from meshc.devices import device
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.frontend.language import elaborate, library_model
from meshc.interp.check import check_same
from meshc.ir.clone import clone_module
from meshc.ir.ops import graph
from meshc.passes.registry import parse_pipeline

HERE = Path(__file__).parent
H200 = device("h200")


def block(
    batch=1, hidden=64, heads=4, kv_heads=2, head=64, capacity=24, biases=False, layers=2,
    normed="",
):  # fmt: skip
    """Text of a decode step: attention and feed-forward in layers, embedding and logits; heads of
    ``normed`` (q, k) are normed."""
    q, k, v = ("q_0", "k_0", "v_0") if biases else ("q", "k", "v")
    biased = "".join(
        f"%{n} = graph.add %{n}_0, %b{n}_1 : f16[B, L, {h}, D]\n"
        for n, h in (("q", "H"), ("k", "G"), ("v", "G"))
    )
    stacked = [
        ("norm", "E"), ("wq", "E, H, D"), ("wk", "E, G, D"), ("wv", "E, G, D"), ("wo", "H, D, E"),
        ("norm2", "E"), ("wg", "E, F"), ("wu", "E, F"), ("wd", "F, E"),
    ]  # fmt: skip
    stacked += [("bq", "H, D"), ("bk", "G, D"), ("bv", "G, D")] if biases else []
    stacked += [(f"n{n}", "D") for n in normed]
    made = {n: f"{n}_h" if n in normed else n for n in "qk"}
    norms = "".join(
        f"%{n}_h = graph.rms_norm %{n}, %n{n}_1 {{dim = D}} : f16[B, L, {h}, D]\n"
        for n, h in (("q", "H"), ("k", "G"))
        if n in normed
    )
    weights = ", ".join(f"weight %{n}: f16[N, {d}]" for n, d in stacked)
    caches = "f16[N, B, S, G, D]"
    names = ", ".join(f"%{n}" for n, _ in stacked)
    args = ", ".join(f"%{n}_1: f16[{d}]" for n, d in stacked)
    return f"""module @step level(graph) holds(transpose_free) {{
  dims B = {batch}, L = 1, S = {capacity}, E = {hidden}, H = {heads}, G = {kv_heads}, D = {head},
    F = 48, V = 32, N = {layers}
  scalars pos = 0..{capacity - 1}
  options dtype = f16
  func @decode(in %tokens: i32[B, L], weight %table: f16[V, E], weight %last: f16[E], {weights},
      state %kc: {caches}, state %vc: {caches}) -> (f16[B, L, V], {caches}, {caches}) {{
    %x = graph.embed %tokens, %table {{dim = V}} : f16[B, L, E]
    %out, %kc_2, %vc_2 = graph.repeat %x, {names}, %kc, %vc {{dim = N}}
        : f16[B, L, E], {caches}, {caches}
        (%x_1: f16[B, L, E], {args}, %kc_1: f16[B, S, G, D], %vc_1: f16[B, S, G, D]) {{
      %h = graph.rms_norm %x_1, %norm_1 {{dim = E}} : f16[B, L, E]
      %{q}, %{k}, %{v} = graph.matmul %h, %wq_1, %wk_1, %wv_1 {{contract = [E]}}
        : f16[B, L, H, D], f16[B, L, G, D], f16[B, L, G, D]
      {biased if biases else ""}{norms}
      %q_1 = graph.rope %{made["q"]} {{dim = D, rows = L, style = interleaved}} : f16[B, L, H, D]
      %k_1 = graph.rope %{made["k"]} {{dim = D, rows = L, style = interleaved}} : f16[B, L, G, D]
      %keys = graph.append %kc_1, %k_1 {{dim = S, rows = L}} : f16[B, S, G, D]
      %values = graph.append %vc_1, %v {{dim = S, rows = L}} : f16[B, S, G, D]
      %s = graph.matmul %q_1, %keys {{contract = [D], group = [H, G]}} : f16[B, L, H, S]
      %t = graph.scale %s {{factor = 0.125}} : f16[B, L, H, S]
      %p = graph.softmax %t {{dim = S, mask = causal, rows = L}} : f16[B, L, H, S]
      %a = graph.matmul %p, %values {{contract = [S], group = [H, G]}} : f16[B, L, H, D]
      %y = graph.matmul %a, %wo_1 {{contract = [H, D]}} : f16[B, L, E]
      %z = graph.add %x_1, %y : f16[B, L, E]
      %n = graph.rms_norm %z, %norm2_1 {{dim = E}} : f16[B, L, E]
      %g, %u = graph.matmul %n, %wg_1, %wu_1 {{contract = [E]}} : f16[B, L, F], f16[B, L, F]
      %r = graph.silu %g : f16[B, L, F]
      %m = graph.mul %r, %u : f16[B, L, F]
      %d = graph.matmul %m, %wd_1 {{contract = [F]}} : f16[B, L, E]
      %w = graph.add %z, %d : f16[B, L, E]
      graph.yield %w, %keys, %values
    }}
    %c = graph.rms_norm %out, %last {{dim = E}} : f16[B, L, E]
    %logits = graph.matmul %c, %table {{contract = [E]}} : f16[B, L, V]
    graph.return %logits, %kc_2, %vc_2
  }}
}}
"""


def fused(text, passes="fuse-chunk"):
    """The module before and after, and the messages."""
    module = meshc.parse(text)
    module.device = H200
    before = clone_module(module)
    report = meshc.Diagnostics()
    return before, meshc.PassManager(parse_pipeline(passes)).run(module, report), report.messages


def kernels(module):
    return [op.kernel for op in module.walk() if isinstance(op, graph.Fuse)]


ALL = ["embed", "attention_block", "ffn_block", "head"]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([64, 96, 128]),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (8, 1), (9, 3)]),
    st.sampled_from([64, 96, 128]),
    st.booleans(),
)
def test_a_fused_step_computes_the_same(batch, hidden, heads, head, biases):
    before, after, _ = fused(block(batch, hidden, *heads, head, biases=biases))
    assert kernels(after) == ALL
    assert check_same(before, after).max_error == 0
    outside = [op.NAME for op in after.walk() if not isinstance(op, graph.Fuse)]
    assert outside.count("graph.softmax") == 1, "ops are moved, not copied"


def test_heads_may_be_normed():
    before, after, _messages = fused(block(biases=True, normed="qk"))
    assert kernels(after) == ALL
    assert check_same(before, after).max_error == 0
    (op,) = (o for o in after.walk() if isinstance(o, graph.Fuse) and o.kernel == ALL[1])
    assert {"query_norm", "key_norm"} <= set(op.takes)


@pytest.mark.parametrize("normed", ["q", "k"])
def test_norms_of_heads_that_are_not_the_kernels(normed):
    before, after, messages = fused(block(normed=normed))
    assert "attention_block" not in kernels(after)
    words = "one of query and key is normed, the other not"
    assert any(words in m.message for m in messages), [m.message for m in messages]
    assert check_same(before, after).max_error == 0


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3-8b", "qwen2-72b", "smollm2-135m"])
def test_built_in_models(model):
    request = CompileRequest(device="h200", phase="decode", layers=1, dtype="bf16")
    module = graph_module(load_any(model, meshc.Diagnostics()), "decode", request)
    report = meshc.Diagnostics()
    passes = parse_pipeline("canonicalize,eliminate-transpose,fuse-chunk")
    after = meshc.PassManager(passes).run(module, report)
    assert kernels(after) == ALL
    assert [m.code for m in report.messages if m.severity == "missed"] == []
    assert [op.NAME for op in after.function.body.ops] == [
        "graph.fuse", "graph.repeat", "graph.fuse", "graph.return",
    ]  # fmt: skip
    again = meshc.parse(meshc.print_module(after))
    assert meshc.print_module(again) == meshc.print_module(after)


def latent_step(**changes):
    """The decode graph of a tiny deepseek_v2 before and after fuse-chunk, and messages."""
    sizes = {"E": 64, "R": 16, "N": 16, "P": 8, "D": 16, "F": 96, "V": 64, "layers": 2}
    sizes |= changes
    module = elaborate(library_model("deepseek_v2", sizes), "decode", seq=16)
    module.device, module.options["dtype"] = H200, "bf16"
    before = clone_module(module)
    report = meshc.Diagnostics()
    passes = parse_pipeline("canonicalize,eliminate-transpose,fuse-chunk")
    after = meshc.PassManager(passes).run(module, report)
    return before, after, report.messages


def test_latent_attention_stays():
    """Its scores are sums of two products."""
    before, after, messages = latent_step()
    assert kernels(after) == ["embed", "ffn_block", "head"]
    (missed,) = (m for m in messages if m.severity == "missed")
    assert "an attention block stays: the scores" in missed.message
    assert check_same(before, after).agrees


def test_prefill_is_left_alone():
    request = CompileRequest(device="h200", phase="prefill", seq=32, layers=1, dtype="f16")
    module = graph_module(load_any("smollm2-135m", meshc.Diagnostics()), "prefill", request)
    report = meshc.Diagnostics()
    passes = parse_pipeline("canonicalize,eliminate-transpose,fuse-chunk")
    assert kernels(meshc.PassManager(passes).run(module, report)) == []
    (missed,) = (m for m in report.messages if m.severity == "missed")
    assert missed.code == "fuse-chunk"
    assert "L = 32 rows at once (prefill)" in missed.message


def test_what_is_fused_is_told():
    *_, messages = fused(block())
    assert [m.message for m in messages if m.code == "fused"] == ALL
    assert all(m.span for m in messages)


def test_there_are_no_options():
    with pytest.raises(meshc.MeshcError) as caught:
        parse_pipeline("fuse-chunk{cluster=2}")
    assert {d.code for d in caught.value.diagnostics} == {"bad-pass-option"}


ATTENTION = [
    ("mask = causal", "mask = none", "the mask of %p is 'none', not 'causal'"),
    ("dim = D, rows = L, style = interleaved", "dim = D, rows = L", "has the style 'half'"),
    (
        "%k_1 = graph.rope %k {dim = D, rows = L,",
        "%k_1 = graph.rope %k {dim = D, rows = L, theta = 500000.0,",
        "RoPE of the query and the key differ",
    ),
    (
        "%q_1 = graph.rope %q {dim = D, rows = L, style = interleaved}",
        "%q_1 = graph.silu %q",
        "the query %q_1 comes from graph.silu, not graph.rope",
    ),
    ("graph.append %kc_1, %k_1", "graph.append %vc_1, %k_1", "it takes one value in two places"),
    ("graph.add %x_1, %y", "graph.add %h, %y", "adds what the norm does not read: %h"),
    (
        "graph.add %z, %d",
        "graph.add %a_1, %d",
        "the attended values %a is read by graph.matmul, graph.matmul",
    ),
    ("graph.matmul %p, %values", "graph.matmul %p, %keys", "the value %k_1 comes from graph.rope"),
    (
        "%n = graph.rms_norm %z, %norm2_1",
        "%n = graph.rms_norm %h, %norm2_1",
        "%h is also read by graph.rms_norm",
    ),
]


@pytest.mark.parametrize(("old", "new", "words"), ATTENTION, ids=[a[2] for a in ATTENTION])
def test_attention_that_is_not_the_kernels(old, new, words):
    text = block().replace(old, new)
    if "%a_1" in new:
        more = "%a_1 = graph.matmul %a, %wo_1 {contract = [H, D]} : f16[B, L, E]\n"
        text = text.replace("%w = graph.add", more + "%w = graph.add")
    before, after, messages = fused(text)
    assert "attention_block" not in kernels(after)
    missed = [m for m in messages if m.severity == "missed"]
    assert all(m.code == "fuse-chunk" and m.span for m in missed)
    assert check_same(before, after).max_error == 0
    assert any(words in m.message for m in missed), [m.message for m in missed]


REST = [
    ("graph.mul %r, %u", "graph.mul %r, %g", "graph.matmul also gives %u"),
    ("%d = graph.matmul %m,", "%d = graph.matmul %r,", "%m is read by nothing"),
    ("graph.add %z, %d", "graph.add %n, %d", "adds what the norm does not read: %n"),
    ("graph.matmul %c, %table", "graph.matmul %out, %table", "%out comes from graph.repeat"),
]


@pytest.mark.parametrize(("old", "new", "words"), REST, ids=[r[2] for r in REST])
def test_other_kernels_that_do_not_match(old, new, words):
    text = block().replace(old, new)
    before, after, messages = fused(text)
    assert len(kernels(after)) == 3
    assert any(words in m.message for m in messages), [m.message for m in messages]
    assert check_same(before, after).max_error == 0


def test_a_value_that_is_needed_before_the_kernel_is_over():
    """The keys are read between the append and the end of the block."""
    early = "%e = graph.scale %keys {factor = 2.0} : f16[B, S, G, D]\n"
    text = block().replace("%values = graph.append", early + "%values = graph.append")
    text = text.replace("graph.yield %w, %keys, %values", "graph.yield %w, %e, %values")
    _, after, messages = fused(text)
    assert any("reads %keys before the kernel is over" in m.message for m in messages)
    assert "attention_block" not in kernels(after)


def test_the_pass_leaves_other_ops_in_order():
    text = block().replace(
        "%y = graph.matmul %a", "%i = graph.silu %x_1 : f16[B, L, E]\n%y = graph.matmul %a"
    )
    text = text.replace("%w = graph.add %z, %d", "%v_9 = graph.add %z, %d")
    text = text.replace(
        "graph.yield %w, ", "%w = graph.add %v_9, %i : f16[B, L, E]\ngraph.yield %w, "
    )
    before, after, _ = fused(text)
    (loop,) = (op for op in after.walk() if isinstance(op, graph.Repeat))
    names = [op.NAME for op in loop.regions[0].ops]
    assert names == ["graph.silu", "graph.fuse", "graph.fuse", "graph.add", "graph.yield"]
    assert check_same(before, after).max_error == 0
