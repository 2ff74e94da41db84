"""Sinks, windows in alternate layers, clamped experts and biases: the gpt_oss family and drawn
models on the Python target, against transformers and against drawn graphs, beyond the window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from recorded_models import check, check_batch, check_of, facts
from reduced import crossed, each

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.executor import QUICK as EXECUTED
from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "tiny_gpt_oss").iterdir())
WIDE, NARROW = FOLDERS
MESHES = ("2x2", "3x2")
MORE_MESHES = ("1x1", "2x5", "1x4", "5x1", "3x3", "4x6")
BATCHES = [(batch, mesh) for batch in range(2, 7) for mesh in ("2x2", "3x2")]
QUICK = ((3, "3x2"),)


def name_of(folder: Path | str) -> str:
    return Path(folder).name


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_prompts_are_longer_than_windows(folder: Path) -> None:
    config = load_any(str(folder), Diagnostics()).config
    assert config is not None
    assert int(config.own["W"]) < len(facts(folder)["prompt_ids"])


@pytest.mark.parametrize(("folder", "mesh"), crossed(FOLDERS, MESHES), ids=name_of)
def test_tokens_and_logits_equal_those_of_transformers(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    check(folder, mesh, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MORE_MESHES)
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_tokens_on_more_meshes(folder: Path, mesh: str, tmp_path: Path) -> None:
    check(folder, mesh, tmp_path)


@pytest.mark.parametrize(
    ("batch", "mesh"),
    [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow) for each in BATCHES],
)
def test_a_batch_gives_each_prompt_what_it_gets_alone(
    batch: int, mesh: str, tmp_path: Path
) -> None:
    check_batch(FOLDERS[batch % 2], batch, mesh, tmp_path)


@pytest.mark.parametrize("form", each(["merged", "deferred"], 2))
def test_every_form_of_a_softmax_counts_the_sink(form: str, tmp_path: Path) -> None:
    check(WIDE, "2x3", tmp_path, decode={"partition": f'partition{{forms=["s={form}"]}}'})


def test_layers_in_regions_keep_their_windows(tmp_path: Path) -> None:
    """Two layers in the first region, one in the second."""
    check(WIDE, "2x2", tmp_path, passes={"split-regions": "split-regions{regions=2}"})


@pytest.mark.parametrize("kv", ["shift", "concat"])
def test_windows_need_caches_whose_slots_tell_positions(kv: str) -> None:
    with pytest.raises(MeshcError) as caught:
        meshc.compile(str(NARROW), mesh="2x2", seq=8, kv=kv)
    (found,) = caught.value.diagnostics
    assert found.code == "unsupported-layout" and "--kv cyclic" in str(found.help)


def test_every_pass_keeps_what_both_phases_compute() -> None:
    loaded = load_any(str(NARROW), Diagnostics())
    check = Check()
    compile_loaded(loaded, CompileRequest(mesh="2x3", seq=8, dtype="f32", batch=2), [check])
    assert check.compared >= 18


KERNEL_SIZES = """
use blocks
model sized(E=64, H=2, G=1, D=64, F=64, V=96, layers=2) {{
  weights f16  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    heads H share G
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E], sinks[H]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      h = rms_norm(x, attn_norm)
      keys = append(cache.k, rope(h @ wk))
      values = append(cache.v, h @ wv)
      s = softmax(rope(h @ wq) @ transpose(keys) / sqrt(D), mask = causal{more})
      x = x + (s @ values) @ wo
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


WINDOWS_AND_SINKS = {
    ", window = 4, every = 2": "differs from layer to layer",
    ", sink = sinks": "has a sink",
}


@pytest.mark.parametrize(("more", "words"), WINDOWS_AND_SINKS.items(), ids=["window", "sink"])
def test_kernels_of_chunks_refuse_dense_models_for_some_windows_and_sinks_alone(
    more: str, words: str, tmp_path: Path
) -> None:
    """Of sizes that all of them take."""
    (tmp_path / "sized.mesh").write_text(KERNEL_SIZES.format(more=more), encoding="utf-8")
    with pytest.raises(MeshcError, match=words):
        meshc.compile(tmp_path / "sized.mesh", target="cuda", seq=256, chunk=256)


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("more", WINDOWS_AND_SINKS, ids=["window", "sink"])
def test_steps_made_of_tasks_have_windows_and_sinks(more: str, tmp_path: Path) -> None:
    """Beyond the window, beside the graph."""
    model = tmp_path / "sized.mesh"
    model.write_text(KERNEL_SIZES.format(more=more), encoding="utf-8")
    found = meshc.compile(model, target="cuda", seq=16)
    assert "step-of-tasks" in {remark.code for remark in found.remarks}
    graph = meshc.compile(model, seq=16, phase="decode", compile_to="graph")
    module, dice = graph.modules["decode"], np.random.default_rng(3)
    weights, names = {}, []
    for param in module.function.params:
        if param.role == "weight":
            drawn = 0.2 * dice.standard_normal(param.value.type.shape(module.dims))
            weights[param.value.name] = drawn.astype(np.float16).astype(np.float64)
        elif param.role == "state":
            names.append(param.value.name)
    program = from_json(found.files["manifest.json"])
    machine = CpuMachine(program.kernels, found.files, toolchain=EXECUTED)
    step, states = LanguageModel(program, machine, weights), {}
    for position, token in enumerate([3, 17, 0, 39, 39, 95, 8, 61]):
        given = {"tokens": np.array([[token]]), **weights, **states}
        wanted, *caches = run_graph(module, given, {"pos": position})
        states = dict(zip(names, caches, strict=True))
        (logits,) = step.step([token], [position])
        assert np.abs(logits - wanted.reshape(-1)).max() <= 2.0**-9 * np.abs(wanted).max()


MODEL = """
use blocks
model drawn(E={E}, H={H}, G={G}, D={D}, F={F}, X={X}, V=31, layers={layers}) {{
  weights f32  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  block rotate(t[B, L, N, D]) {{
    return rope(t, scaling = yarn, factor = 4.0, original_max_position = 32, truncate = {truncate})
  }}
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E], sinks[H]
      param ffn_norm[E], router[E, X], router_bias[X], w_gate[E, X, F], w_up[E, X, F]
      param w_down[X, F, E], b_gate[X, F], b_down[X, E]
      h = rms_norm(x, attn_norm)
      q = rotate(h @ wq)
      k = rotate(h @ wk)
      x = x + sink_attention(q, k, h @ wv, sinks, {window}, {every}, 1.25) @ wo
      h = rms_norm(x, ffn_norm)
      gates = top_k(softmax(h @ router + router_bias), {count}, normalise = true)
      gate = clamp(h @ w_gate + b_gate, most = 0.75)
      up = clamp(h @ w_up, -0.5, 0.5)
      gate = gate * sigmoid(gate * 1.702)
      x = x + ((gate * up + gate) * gates) @ w_down + gates @ b_down
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


@st.composite
def drawn_models(draw: st.DrawFn) -> str:
    """A model of any heads, windows, layers that have them, and experts."""
    groups = draw(st.integers(1, 3))
    sizes = {"G": groups, "H": groups * draw(st.integers(1, 3)), "D": 2 * draw(st.integers(1, 3))}
    sizes |= {name: draw(st.integers(1, 7)) for name in ("F", "X")}
    sizes |= {"E": draw(st.integers(2, 13)), "layers": draw(st.integers(1, 4))}
    return MODEL.format(
        **sizes,
        count=draw(st.integers(1, sizes["X"])),
        window=draw(st.integers(0, 7)),
        every=draw(st.integers(1, 3)),
        truncate=draw(st.sampled_from(["true", "false"])),
    )


test_drawn_models = check_of(drawn_models(), 4)
test_more_drawn_models = pytest.mark.slow(check_of(drawn_models(), 60))
