"""Latent attention in emitted CSL, on the simulator: prompts as in the interpreter, decode steps as
in transformers."""

import json

import pytest
from csl_decoding import TINY, Decoder
from csl_prompts import Conversation, Prompts

MODEL = """
use blocks
model latent(E=10, H=3, R=6, N=4, P=4, D=2, F=8, V=11, layers=2) {{
  weights {dtype}  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, N], wq_rope[E, H, P], w_latent[E, R], w_rope[E, P]
      param latent_norm[R], w_uk[N, H, R], w_uv[R, H, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      h = rms_norm(x, attn_norm)
      latent = rms_norm(h @ w_latent, latent_norm)
      q_rope = rope(h @ wq_rope, style = interleaved)
      k_rope = rope(h @ w_rope, style = interleaved)
      x = x + mla_attention(h @ wq, q_rope, latent, k_rope, w_uk, w_uv) @ wo
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


@pytest.mark.parametrize(
    ("mesh", "dtype"),
    [("2x2", "f32"), pytest.param("3x2", "f16", marks=pytest.mark.slow)],
)
def test_prompts_fill_the_caches_as_in_the_interpreter(mesh, dtype, tmp_path):
    (tmp_path / "latent.mesh").write_text(MODEL.format(dtype=dtype))
    prompts = Prompts(tmp_path / "latent.mesh", tmp_path, mesh=mesh, seq=5)
    for length in (5, 1, 4):
        found = prompts.compare(length)
        assert found.agrees, (length, found)


@pytest.mark.slow
def test_decode_steps_give_the_tokens_of_transformers(tmp_path, monkeypatch):
    wanted = json.loads((TINY / "../tiny_cuda/deepseek-4h/expected.json").read_text())
    options = {"mesh": "4x4", "seq": 12, "dtype": "f32"}
    decoder = Decoder("../tiny_cuda/deepseek-4h", tmp_path, monkeypatch, **options)
    assert decoder.generate(wanted["prompt_ids"], 3) == wanted["tokens"][:3]


def test_steps_in_half_precision_are_those_of_the_interpreter(tmp_path):
    """What a product by heads sums in f32 is the factor of the next product, with f16 weights."""
    (tmp_path / "latent.mesh").write_text(MODEL.format(dtype="f16"))
    steps = Conversation(tmp_path / "latent.mesh", tmp_path, mesh="2x2", seq=8, phase="decode")
    found = steps.compare(3, 3)
    assert found.agrees, found
