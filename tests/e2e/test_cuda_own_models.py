"""Models that are written otherwise than the library's, as CUDA kernels in the CPU executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import each

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

# The value is projected first and up before gate; heads have keys of their own; biases everywhere.
MODEL = """use blocks
model own(E=64, H=2, D=64, F=96, V=40, layers=2) {
  weights f16  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat layers {
      param n1[E], wq[E, H, D], wk[E, H, D], wv[E, H, D], wo[H, D, E]
      param bq[H, D], bk[H, D], bv[H, D]
      param n2[E], wg[E, F], wu[E, F], wd[F, E], bg[F], bu[F], bd[E]
      h = rms_norm(x, n1)
      v = h @ wv + bv
      k = rope(h @ wk + bk)
      q = rope(h @ wq + bq)
      x = mha_attention(q, k, v) @ wo + x
      h = rms_norm(x, n2)
      up = h @ wu + bu
      x = x + ((up * silu(h @ wg + bg)) @ wd + bd)
    }
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }
}
"""


# One key and one value for all heads, the output's bias alone, a feed-forward layer without gate.
SHARED = """use blocks
model shared(E=64, H=4, D=64, F=96, V=40, layers=2) {
  weights f16  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat layers {
      param n1[E], wq[E, H, D], wk[E, D], wv[E, D], wo[H, D, E], bo[E]
      param n2[E], w1[E, F], b1[F], w2[F, E], b2[E]
      h = rms_norm(x, n1)
      x = x + (mqa_attention(rope(h @ wq), rope(h @ wk), h @ wv) @ wo + bo)
      h = rms_norm(x, n2)
      x = x + (gelu(h @ w1 + b1) @ w2 + b2)
    }
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }
}
"""
BIASED = SHARED.replace("wv[E, D]", "wv[E, D], bq[H, D], bk[D], bv[D]")
for _name in "qkv":
    BIASED = BIASED.replace(f"h @ w{_name}", f"h @ w{_name} + b{_name}")
TEXTS = {
    "own": MODEL,
    "shared key": SHARED,
    "shared key, biases, gelu by tanh, without biases of the feed-forward layer": BIASED.replace(
        "gelu(h @ w1 + b1) @ w2 + b2", "gelu(h @ w1, form = tanh) @ w2"
    )
    .replace(", b1[F]", "")
    .replace(", b2[E]", ""),
    "silu without gate": SHARED.replace("gelu(", "silu("),
    "a table that is turned around, tied": MODEL.replace("embedding[V, E]", "embedding[E, V]")
    .replace("embed(tokens, embedding)", "embed(tokens, transpose(embedding))")
    .replace(", lm_head[E, V]", "")
    .replace("@ lm_head", "@ embedding"),
    "exact gelu as gate": MODEL.replace("silu(", "gelu("),
}


def compiled(folder: Path, text: str, **options: object):
    """With kernels that read chunks of prompts, unless ``options`` say otherwise."""
    (folder / "own.mesh").write_text(text)
    report = Diagnostics()
    asked = {"target": "cuda", "dtype": "f16", "seq": 64, "chunk": 16} | options
    request = CompileRequest(**asked)
    return compile_loaded(load_any(str(folder / "own.mesh"), report), request, (), report)


@pytest.mark.parametrize("name", each(TEXTS, 4))
def test_logits_are_those_of_the_graph(name, tmp_path: Path):
    result = compiled(tmp_path, TEXTS[name])
    judge(result, compiled(tmp_path, TEXTS[name], chunk=None, compile_to="graph").modules["decode"])


TWICE = "      h = h * silu(h)\n"
# One head's keys lie apart from its values, which latents do not; and what is read twice is not
# written out twice, which after forty lines is no text that ends.
OF_TASKS = {
    "shared key": SHARED,
    "read twice": SHARED.replace("      x = x + (gelu", TWICE * 40 + "      x = x + (gelu"),
}


@pytest.mark.parametrize("name", OF_TASKS)
def test_logits_of_a_step_of_tasks_are_those_of_the_graph(name, tmp_path: Path):
    result = compiled(tmp_path, OF_TASKS[name], chunk=None)
    graph = compiled(tmp_path, OF_TASKS[name], chunk=None, compile_to="graph")
    judge(result, graph.modules["decode"])


def test_columns_of_no_token_are_finite(tmp_path: Path):
    """Three tokens in a chunk of sixteen, of a model whose norm of zeros is no number."""
    text = SHARED.replace("D=64", "D=40").replace("(x, n1)", "(x, n1, eps = 0.0)")
    result = compiled(tmp_path, text, chunk=None)
    program = from_json(result.files["manifest.json"])
    assert program.prefills and program.prefills[0].tokens == 16
    module = compiled(tmp_path, text, chunk=None, compile_to="graph").modules["decode"]
    rng = np.random.default_rng(2)
    tensors = {
        p.value.name: (rng.standard_normal(p.value.type.shape(module.dims)) * 0.2)
        for p in module.function.params
        if p.role == "weight"
    }
    found = [
        LanguageModel(
            one, CpuMachine(program.kernels, result.files, toolchain=QUICK), tensors
        ).prefill([3, 17, 0, 39])
        for one in (program, replace(program, prefills=()))
    ]
    assert np.abs(found[0] - found[1]).max() <= 2.0**-8 * np.abs(found[1]).max()


def judge(result, module):
    """Logits of steps are those of the graph ``module``."""
    rng = np.random.default_rng(2)
    tensors = {
        p.value.name: (rng.standard_normal(p.value.type.shape(module.dims)) * 0.2)
        .astype(np.float16)
        .astype(np.float64)
        for p in module.function.params
        if p.role == "weight"
    }
    program = from_json(result.files["manifest.json"])
    model = LanguageModel(
        program, CpuMachine(program.kernels, result.files, toolchain=QUICK), tensors
    )
    names = [p.value.name for p in module.function.params if p.role == "state"]
    states, tokens = {}, [3, 17, 0, 39, 39]
    for position, token in enumerate(tokens):
        inputs = {"tokens": np.array([[token]]), **tensors, **states}
        logits, *caches = run_graph(module, inputs, {"pos": position})
        states = dict(zip(names, caches, strict=True))
        (found,) = model.step([token], [position])
        assert np.abs(found - logits.reshape(-1)).max() <= 2.0**-9 * np.abs(logits).max()
    if program.prefills:
        found = model.prefill(tokens)  # inputs of products are rounded to 16 bits
        assert np.abs(found - logits.reshape(-1)).max() <= 2.0**-8 * np.abs(logits).max()


def test_weights_of_another_shape_are_refused(tmp_path: Path):
    """A matrix that is turned around has as many values and would fill the same memory."""
    result = compiled(tmp_path, MODEL)
    program = from_json(result.files["manifest.json"])
    module = compiled(tmp_path, MODEL, chunk=None, compile_to="graph").modules["decode"]
    params, dims = module.function.params, module.dims
    tensors = {p.value.name: np.zeros(p.value.type.shape(dims)) for p in params}
    tensors["wd"] = tensors["wd"].swapaxes(1, 2)
    with pytest.raises(MeshcError, match=r"'wd' has shape \[2, 64, 96\]; .* needs \[2, 96, 64\]"):
        LanguageModel(program, CpuMachine(program.kernels, result.files, toolchain=QUICK), tensors)


def turned(declared: str, stored: str, read: str) -> str:
    """The model with a weight of another order of dims."""
    return MODEL.replace(declared, stored).replace(f"h @ {declared[:2]}", f"h @ {read}")


TURNED = {
    turned("wv[E, H, D]", "wv[H, E, D]", "transpose(wv, H, E)"): "%wv_1 of the attention_block",
    turned("wu[E, F]", "wu[F, E]", "transpose(wu)"): "%wu_1 of the ffn_block",
}


@pytest.mark.parametrize(("text", "words"), TURNED.items(), ids=["value", "up"])
def test_weights_in_another_order_are_refused(text, words, tmp_path: Path):
    with pytest.raises(MeshcError) as caught:
        compiled(tmp_path, text, seq=256, chunk=256)  # tasks read no more than 128
    assert [d.code for d in caught.value.diagnostics] == ["cuda-shape"]
    assert words in str(caught.value)


BIASES = "bq[H, D], bk[H, D], bv[H, D]"
SHARED_BIASES = {
    "bq[D], bk[H, D], bv[H, D]": "the bias %bq_1 is over D, what it is added to over H, D",
    "bq[H, D], bk[H, D], bv[H]": "the bias %bv_1 is over H, what it is added to over H, D",
    "bq[D], bk[D], bv[D]": "the bias %bq_1 is over D",
}


@pytest.mark.parametrize(("declared", "words"), SHARED_BIASES.items())
def test_biases_that_heads_or_lanes_share_are_refused(declared, words, tmp_path: Path):
    text = MODEL.replace(BIASES, declared)
    with pytest.raises(MeshcError) as caught:
        compiled(tmp_path, text, seq=256, chunk=256)  # tasks read no more than 128
    assert [d.code for d in caught.value.diagnostics] == ["cuda-graph"]
    assert words in str(caught.value)


# Parts of MODEL: its layer, the attention block and the feed-forward block in it, what it returns.
LAYER = MODEL[MODEL.index("    repeat") : MODEL.index("    return x")]
ATTENTION = MODEL[
    MODEL.index("      h = rms_norm(x, n1)") : MODEL.index("      h = rms_norm(x, n2)")
]
FEED_FORWARD = MODEL[MODEL.index("      h = rms_norm(x, n2)") : MODEL.index("    }\n    return")]
LAST = "return rms_norm(x, final_norm) @ lm_head"
SECOND = "param n3[E], w1[E, F], w2[F, E]\n x = x + silu(rms_norm(x, n3) @ w1) @ w2\n"
CHAINS = {
    "no loop": (
        MODEL.replace(", layers=2", "").replace(LAYER, "\n".join(LAYER.split("\n")[1:-2]) + "\n"),
        "embed, attention_block, ffn_block, head",
    ),
    "two feed-forward blocks": (
        MODEL.replace(FEED_FORWARD, FEED_FORWARD + SECOND),
        "a layer of this model are attention_block, ffn_block, ffn_block",
    ),
    "the feed-forward block first": (
        MODEL.replace(ATTENTION + FEED_FORWARD, FEED_FORWARD + ATTENTION),
        "ffn_block, attention_block",
    ),
    "no feed-forward block": (MODEL.replace(FEED_FORWARD, ""), "are attention_block\n"),
    "two look-ups": (
        MODEL.replace("param embedding", "param other[V, E], embedding").replace(
            LAST, LAST.replace("x", "embed(tokens, other)", 1)
        ),
        "embed, a loop of layers, embed, head",
    ),
    "logits of what was looked up": (
        MODEL.replace("repeat layers", "first = x\n repeat layers").replace(
            LAST, LAST.replace("x", "first", 1)
        ),
        "head reads %x, not what the kernel in front of it gives",
    ),
    "another result": (
        MODEL.replace("V] {", "V], [B, L, E] {")
        .replace("x when", "x, x when")
        .replace(LAST, LAST + ", x"),
        "a step gives the logits and its caches, not",
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_kernels_in_another_chain_are_refused(name, tmp_path: Path):
    """Launches join kernels by buffers of fixed names, so these would give wrong logits."""
    text, words = CHAINS[name]
    with pytest.raises(MeshcError) as caught:
        compiled(tmp_path, text, seq=256, chunk=256)  # tasks read no more than 128
    assert [d.code for d in caught.value.diagnostics] == ["cuda-graph"]
    assert words in str(caught.value)


# Rows of a result are no whole groups of rows, and norms behind a block are given by all threads.
NORMED_RESULT = """
model own(E=10, H=2, D=6, G=1, V=40) {
  weights f16  accumulate f32
  heads H share G
  param embedding[V, E], norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    keys = append(cache.k, x @ wk)
    values = append(cache.v, x @ wv)
    scores[B, L, H, S] = x @ wq @ transpose(keys, S, D)
    y = x + rms_norm(softmax(scores, mask = causal) @ values @ wo, norm)
    return y when prefill
    return y @ lm_head
  }
}
"""
MADE_OF_TASKS = {
    "a normed result": NORMED_RESULT,
    **dict(zip(("turned value", "turned up"), TURNED, strict=True)),
    **{biases: MODEL.replace(BIASES, biases) for biases in SHARED_BIASES},
    **{name: text for name, (text, _) in CHAINS.items() if name != "another result"},
    "squared relu": SHARED.replace("gelu(", "relu2("),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", each(MADE_OF_TASKS, 5))
def test_what_kernels_of_chunks_refuse_is_made_of_tasks(name, tmp_path: Path):
    result = compiled(tmp_path, MADE_OF_TASKS[name], chunk=None)
    assert "step-of-tasks" in {d.code for d in result.remarks}
    graph = compiled(
        tmp_path, MADE_OF_TASKS[name], target="python", chunk=None, phase="decode",
        compile_to="graph",
    )  # fmt: skip
    judge(result, graph.modules["decode"])


def test_steps_of_tasks_give_logits_alone(tmp_path: Path):
    with pytest.raises(MeshcError, match=r"\[cuda-graph\]: a step gives the logits and its caches"):
        compiled(tmp_path, CHAINS["another result"][0], chunk=None)
