"""Queries and keys that are normalised head by head: prompts and decode steps of a whole language
model against NumPy in float64, which sees all tokens at once."""

from pathlib import Path

import numpy as np
import pytest
from reduced import each

import meshc

LAYERS, EPS, THETA = 2, 1e-5, 10000.0
PROMPT, COUNT = [3, 17, 8, 5, 9], 4
SIZES = {"E": 24, "H": 6, "G": 2, "D": 4, "F": 20, "V": 32, "layers": LAYERS}
MODEL = """use blocks
model normed({sizes}) {{
  heads H share G
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param n1[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E], nq[D], nk[D]
      param n2[E], w1[E, F], w2[F, E]
      h = rms_norm(x, n1)
      q = rope(rms_norm(h @ wq, nq), theta = 10000.0)
      keys = append(cache.k, rope(rms_norm(h @ wk, nk), theta = 10000.0))
      values = append(cache.v, h @ wv)
      x = x + softmax(q @ transpose(keys) / sqrt(D), mask = causal) @ values @ wo
      x = x + silu(rms_norm(x, n2) @ w1) @ w2
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPS) * gain


def rotated(x):
    """Pairs of lanes half a head apart, [tokens, heads, lanes]."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * THETA ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attended(x, w):
    """What attention adds to x."""
    h = norm(x, w["n1"])
    q, k, v = (np.einsum("le,ehd->lhd", h, w[n]) for n in ("wq", "wk", "wv"))
    share = SIZES["H"] // SIZES["G"]
    k, v = (np.repeat(part, share, 1) for part in (rotated(norm(k, w["nk"])), v))
    scores = np.einsum("lhd,mhd->hlm", rotated(norm(q, w["nq"])), k) / np.sqrt(SIZES["D"])
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hlm,mhd,hde->le", shares, v, w["wo"])


def logits(ids, weights):
    """Of every token of ``ids``, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["embedding"][ids]
    for layer in range(LAYERS):
        own = {n: a[layer] for n, a in w.items() if n not in ("embedding", "final_norm", "lm_head")}
        x = x + attended(x, own)
        h = norm(x, own["n2"]) @ own["w1"]
        x = x + (h / (1 + np.exp(-h))) @ own["w2"]
    return norm(x, w["final_norm"]) @ w["lm_head"]


def random_weights():
    rng = np.random.default_rng(4)
    shapes = {
        "embedding": "V E", "final_norm": "E", "lm_head": "E V", "n1": "N E", "wq": "N E H D",
        "wk": "N E G D", "wv": "N E G D", "wo": "N H D E", "nq": "N D", "nk": "N D", "n2": "N E",
        "w1": "N E F", "w2": "N F E",
    }  # fmt: skip
    extents = {**SIZES, "N": LAYERS}
    return {
        name: rng.normal(0, 0.5, [extents[d] for d in dims.split()]).astype(np.float32)
        for name, dims in shapes.items()
    }


@pytest.mark.parametrize("mesh", each(["1x1", "4x4", "3x2", "2x3", "1x4"], 2))
def test_prefill_and_decode_agree_with_float64(mesh: str, tmp_path: Path) -> None:
    path = tmp_path / "normed.mesh"
    sizes = ", ".join(f"{name}={extent}" for name, extent in SIZES.items())
    path.write_text(MODEL.format(sizes=sizes))
    compiled = meshc.compile(path, mesh=mesh, seq=len(PROMPT) + COUNT, dtype="f32")
    weights = random_weights()
    answer = compiled.load(weights).generate(PROMPT, COUNT)
    expected = logits([*PROMPT, *answer.tokens[:-1]], weights)[len(PROMPT) - 1 :]
    np.testing.assert_allclose(answer.logits, expected, atol=2e-5 * np.abs(expected).max())
    assert answer.tokens == expected.argmax(-1).tolist()
