"""Latent attention with absorbed weights against the expanded form, and against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshc.frontend.language import elaborate, library_model
from meshc.frontend.language.loader import parse_model
from meshc.interp.check import Session, check_same
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.spans import Source

SIZES = {"E": 64, "H": 4, "R": 16, "N": 12, "P": 8, "D": 10, "F": 48, "V": 37, "layers": 2}
STEPS = 7


def decode_step(**changes: int) -> Module:
    """The decode graph of a tiny model, transposes contracted away."""
    model = library_model("deepseek_v2", {**SIZES, **changes})
    module = elaborate(model, "decode", seq=STEPS)
    return PassManager(parse_pipeline("canonicalize,eliminate-transpose")).run(module)


def test_only_latents_and_rope_keys_are_cached() -> None:
    states = [p.value for p in decode_step().function.params if p.role == "state"]
    assert [str(v.type) for v in states] == ["bf16[layers, B, S, R]", "bf16[layers, B, S, P]"]


def test_passes_keep_its_meaning() -> None:
    model = library_model("deepseek_v2", SIZES)
    before = elaborate(model, "decode", seq=STEPS)
    after = PassManager(parse_pipeline("canonicalize,eliminate-transpose")).run(
        clone_module(before)
    )
    assert not [op for op in after.walk() if isinstance(op, graph.Transpose)]
    assert check_same(before, after).agrees


def expanded(q: Any, q_rope: Any, latents: Any, ropes: Any, w_uk: Any, w_uv: Any) -> Any:
    """Attention of one query over keys and values that are expanded for every head."""
    keys = np.einsum("sr,nhr->hsn", latents, w_uk)
    values = np.einsum("sr,rhd->hsd", latents, w_uv)
    scores = np.einsum("hn,hsn->hs", q, keys) + np.einsum("hp,sp->hs", q_rope, ropes)
    weights = np.exp(scores / np.sqrt(q.shape[-1] + q_rope.shape[-1]))
    weights /= weights.sum(1, keepdims=True)
    return np.einsum("hs,hsd->hd", weights, values)


BLOCK = """use blocks
model attention(H=4, R=16, N=12, P=8, D=10) {
  param w_uk[N, H, R], w_uv[R, H, D]
  main(q[B, L, H, N], q_rope[B, L, H, P], latent[B, L, R], k_rope[B, L, P]) -> [B, L, H, D] {
    return mla_attention(q, q_rope, latent, k_rope, w_uk, w_uv)
  }
}
"""


def test_absorbed_weights_equal_expanded_heads() -> None:
    module = elaborate(parse_model(Source("mla.mesh", BLOCK)), "decode", seq=STEPS)
    rng = np.random.default_rng(3)
    weights = {"w_uk": rng.normal(size=(12, 4, 16)), "w_uv": rng.normal(size=(16, 4, 10))}
    session = Session(module, weights)
    latents, ropes = rng.normal(size=(STEPS, 16)), rng.normal(size=(STEPS, 8))
    for step in range(STEPS):
        q, q_rope = rng.normal(size=(4, 12)), rng.normal(size=(4, 8))
        given = {"q": q, "q_rope": q_rope, "latent": latents[step], "k_rope": ropes[step]}
        (got,) = session.step({name: a[None, None] for name, a in given.items()}, {"pos": step})
        seen = latents[: step + 1], ropes[: step + 1]
        wanted = expanded(q, q_rope, *seen, weights["w_uk"], weights["w_uv"])
        np.testing.assert_allclose(got[0, 0], wanted, rtol=1e-10)


@pytest.mark.oracle
def test_tokens_of_transformers() -> None:
    """Logits of a random model, token by token. Norms and rotations there are in f32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV2Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16,
        q_lora_rank=None, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
        intermediate_size=48, vocab_size=37, num_hidden_layers=2, first_k_dense_replace=2,
        rms_norm_eps=1e-6, max_position_embeddings=64, attn_implementation="eager",
        head_dim=8, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.DeepseekV2ForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 1.0 if "norm" in name else 0.2
            weight.copy_(torch.randn_like(weight) * spread)
        tokens = torch.randint(0, 37, (1, STEPS))
        wanted = model(tokens).logits[0].numpy()
    stored = {n: w.detach().numpy() for n, w in model.state_dict().items()}
    session = Session(decode_step(), logical(stored))
    for step in range(STEPS):
        (got,) = session.step({"tokens": tokens[:, step : step + 1].numpy()}, {"pos": step})
        np.testing.assert_allclose(got[0, 0], wanted[step], rtol=1e-5, atol=1e-5)


def logical(stored: dict[str, Any]) -> dict[str, Any]:
    """The model's tensors from those of a checkpoint."""
    layers = [_layer({n: stored[f"model.layers.{i}.{n}.weight"] for n in _NAMES}) for i in range(2)]
    found = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    found["embedding"] = stored["model.embed_tokens.weight"]
    found["final_norm"] = stored["model.norm.weight"]
    found["lm_head"] = stored["lm_head.weight"].T
    return found


_NAMES = (
    "input_layernorm", "self_attn.q_proj", "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm", "self_attn.kv_b_proj", "self_attn.o_proj",
    "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def _layer(stored: dict[str, Any]) -> dict[str, Any]:
    query = stored["self_attn.q_proj"].T.reshape(64, 4, 20)
    latent = stored["self_attn.kv_a_proj_with_mqa"].T
    up = stored["self_attn.kv_b_proj"].reshape(4, 22, 16)
    return {
        "attn_norm": stored["input_layernorm"],
        "wq": query[..., :12],
        "wq_rope": query[..., 12:],
        "w_latent": latent[:, :16],
        "w_rope": latent[:, 16:],
        "latent_norm": stored["self_attn.kv_a_layernorm"],
        "w_uk": up[:, :12].transpose(1, 0, 2),
        "w_uv": up[:, 12:].transpose(2, 0, 1),
        "wo": stored["self_attn.o_proj"].T.reshape(4, 10, 64),
        "ffn_norm": stored["post_attention_layernorm"],
        "w_gate": stored["mlp.gate_proj"].T,
        "w_up": stored["mlp.up_proj"].T,
        "w_down": stored["mlp.down_proj"].T,
    }
