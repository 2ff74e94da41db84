"""Latent attention on the Python target, against transformers and against drawn graphs: dense
layers and layers with experts, on square and other meshes, alone and in batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from recorded_models import check, check_batch, check_drawn, check_of
from reduced import crossed, each

from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data"
EXPERTS = sorted((DATA / "tiny_latent_experts").iterdir())
DENSE = sorted((DATA / "tiny_cuda").glob("deepseek-*"))
MESHES = ("2x2", "3x2")
MORE_MESHES = ("1x1", "2x5", "1x4", "5x1", "3x3", "4x6")
BATCHES = [(batch, mesh) for batch in range(2, 7) for mesh in ("2x2", "3x2")]
QUICK = ((6, "2x2"),)


def name_of(folder: Path | str) -> str:
    return Path(folder).name


@pytest.mark.parametrize(("folder", "mesh"), crossed(EXPERTS, MESHES), ids=name_of)
def test_tokens_and_logits_equal_those_of_transformers(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    check(folder, mesh, tmp_path)


@pytest.mark.parametrize("folder", each(DENSE, 2), ids=name_of)
def test_dense_models_too(folder: Path, tmp_path: Path) -> None:
    check(folder, "3x2", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MORE_MESHES)
@pytest.mark.parametrize("folder", EXPERTS + DENSE, ids=name_of)
def test_tokens_on_more_meshes(folder: Path, mesh: str, tmp_path: Path) -> None:
    check(folder, mesh, tmp_path)


@pytest.mark.parametrize(
    ("batch", "mesh"),
    [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow) for each in BATCHES],
)
def test_a_batch_gives_each_prompt_what_it_gets_alone(
    batch: int, mesh: str, tmp_path: Path
) -> None:
    check_batch(EXPERTS[batch % len(EXPERTS)], batch, mesh, tmp_path)


@pytest.mark.parametrize("kv", each(["concat", "shift"], 2))
def test_every_policy_keeps_latents_and_rotary_keys_together(kv: str, tmp_path: Path) -> None:
    policy = {"shift-kv-cache": f"shift-kv-cache{{policy={kv}}}"}
    check(EXPERTS[0], "2x3", tmp_path, passes=policy)


def test_a_core_caches_a_latent_and_a_rotary_key() -> None:
    """Rank 10 and 4 rotary lanes, of whatever heads a column has."""
    loaded = load_any(str(DATA / "tiny_latent_experts" / "deepseek-v2-8x3"), Diagnostics())
    compiled = compile_loaded(loaded, CompileRequest(mesh="2x2", seq=8, phase="decode"))
    module = compiled.modules["decode"]
    caches = [b.value.type for b in module.buffers if b.value.name.startswith("kv_cache")]
    assert [kind.shape for kind in caches] == [(1, 1, 1, 4, 14)] * 2


@pytest.mark.slow
def test_every_pass_keeps_what_both_phases_compute() -> None:
    loaded = load_any(str(DATA / "tiny_latent_experts" / "deepseek-v2-8x3"), Diagnostics())
    check = Check()
    compile_loaded(loaded, CompileRequest(mesh="2x3", seq=4, dtype="f32", batch=2), [check])
    assert check.compared >= 18


SHARED_KEYS = """
use blocks
model shared(E=10, H=3, D=4, F=7, V=31, layers=2) {
  weights f32  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat layers {
      param attn_norm[E], wq[E, H, D], wk[E, D], wv[E, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      h = rms_norm(x, attn_norm)
      x = x + mqa_attention(rope(h @ wq), rope(h @ wk), h @ wv) @ wo
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }
}
"""


def test_heads_may_share_keys_and_values_without_heads(tmp_path: Path) -> None:
    check_drawn(SHARED_KEYS, "3x2", 2, 7, tmp_path)


MODEL = """
use blocks
model drawn(E={E}, H={H}, R={R}, N={N}, P={P}, D={D}, Q={Q}, F={F}, X={X}, V=31, layers=2) {{
  weights f32  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], w_latent[E, R], w_rope[E, P], latent_norm[R]
      param w_uk[N, H, R], w_uv[R, H, D], wo[H, D, E]
      param ffn_norm[E], router[E, X], w_gate[E, X, F], w_up[E, X, F], w_down[X, F, E]
      h = rms_norm(x, attn_norm)
      if Q > 0 {{
        param w_query[E, Q], query_norm[Q], w_uq[Q, H, N], w_uq_rope[Q, H, P]
        t = rms_norm(h @ w_query, query_norm)
        q = t @ w_uq
        turning = t @ w_uq_rope
      }} else {{
        param wq[E, H, N], wq_rope[E, H, P]
        q = h @ wq
        turning = h @ wq_rope
      }}
      latent = rms_norm(h @ w_latent, latent_norm)
      a = mla_attention(q, rope(turning, style = interleaved), latent,
                        rope(h @ w_rope, style = interleaved), w_uk, w_uv)
      x = x + a @ wo
      h = rms_norm(x, ffn_norm)
      gates = top_k({score}(h @ router), {count}, normalise = true)
      x = x + experts(h, gates, w_gate, w_up, w_down)
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


@st.composite
def drawn_models(draw: st.DrawFn) -> str:
    """A model of any heads, ranks, lanes and experts."""
    sizes = {name: draw(st.integers(1, 9)) for name in ("H", "R", "N", "D", "F", "X")}
    sizes |= {"E": draw(st.integers(2, 13)), "P": 2 * draw(st.integers(1, 3))}
    sizes["Q"] = draw(st.sampled_from([0, 5]))
    score = draw(st.sampled_from(["softmax", "sigmoid"]))
    return MODEL.format(**sizes, score=score, count=draw(st.integers(1, sizes["X"])))


test_drawn_models = check_of(drawn_models(), 4)
test_more_drawn_models = pytest.mark.slow(check_of(drawn_models(), 60))
