"""Library models run by the graph interpreter against the formulas in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshc.frontend.language import elaborate, library_model, parse_model
from meshc.interp.graph import run_graph
from meshc.support.spans import Source

Arrays = dict[str, np.ndarray[Any, Any]]

SIZES = {
    "E": 12,
    "H": 6,
    "G": 2,
    "D": 4,
    "F": 10,
    "V": 19,
    "layers": 2,
    "eps": 1e-5,
    "theta": 100.0,
}
CAPACITY = 7
PROMPT = [3, 11, 7]
NEXT = [5, 18, 0]


def _norm(x: np.ndarray[Any, Any], gain: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + SIZES["eps"]) * gain


def test_a_norm_of_two_dims_is_one_mean() -> None:
    text = """model both(L=2, A=3, N=4) {
      param gain[A, N]
      main(x[L, N, A]) { return rms_norm(x, gain, eps = 0.5) }
    }"""
    module = elaborate(parse_model(Source("both.mesh", text)), "main")
    x, gain = np.arange(24.0).reshape(2, 4, 3) - 7, np.arange(12.0).reshape(3, 4) + 1
    (found,) = run_graph(module, {"x": x, "gain": gain})
    mean = (x**2).sum((1, 2), keepdims=True) / 12
    np.testing.assert_allclose(found, x / np.sqrt(mean + 0.5) * gain.T, rtol=1e-6)


def _rope(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rotate-half embedding of ``x[L, N, D]`` at positions 0, 1, ..."""
    half = x.shape[-1] // 2
    angle = np.outer(np.arange(len(x)), SIZES["theta"] ** -(np.arange(half) / half))[:, None, :]
    a, b = x[..., :half], x[..., half:]
    turned = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
    return np.concatenate(turned, -1)


def _layer(x: np.ndarray[Any, Any], w: Arrays) -> np.ndarray[Any, Any]:
    """One layer of llama on all rows at once."""
    h = _norm(x, w["attn_norm"])
    q = np.einsum("le,ehd->lhd", h, w["wq"]) + w.get("bq", 0.0)
    k = np.einsum("le,egd->lgd", h, w["wk"]) + w.get("bk", 0.0)
    v = np.einsum("le,egd->lgd", h, w["wv"]) + w.get("bv", 0.0)
    share = SIZES["H"] // SIZES["G"]
    k, v = np.repeat(_rope(k), share, 1), np.repeat(v, share, 1)
    s = np.einsum("lhd,mhd->hlm", _rope(q), k) / np.sqrt(SIZES["D"])
    s = np.where(np.tri(len(x), dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    x = x + np.einsum("hlm,mhd,hde->le", p, v, w["wo"]) + w.get("bo", 0.0)
    h = _norm(x, w["ffn_norm"])
    gate = h @ w["w_gate"] + w.get("b_gate", 0.0)
    up = h @ w["w_up"] + w.get("b_up", 0.0)
    return x + (gate / (1 + np.exp(-gate)) * up) @ w["w_down"] + w.get("b_down", 0.0)


def _logits(tokens: list[int], weights: Arrays) -> np.ndarray[Any, Any]:
    x = weights["embedding"][tokens]
    stacked = {n for n, a in weights.items() if n not in ("embedding", "final_norm", "lm_head")}
    for layer in range(SIZES["layers"]):
        x = _layer(x, {name: weights[name][layer] for name in stacked})
    head = weights["lm_head"] if "lm_head" in weights else weights["embedding"].T
    return _norm(x, weights["final_norm"]) @ head


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("llama", {}),
        ("llama", {"tied": True}),
        ("llama", {"attention_bias": True, "o_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen2", {"tied": True}),
    ],
)
def test_prefill_and_decode_equal_the_formulas(family: str, variant: dict[str, bool]) -> None:
    model = library_model(family, SIZES | variant)
    prefill = elaborate(model, "prefill", seq=CAPACITY)
    decode = elaborate(model, "decode", seq=CAPACITY)
    rng = np.random.default_rng(7)
    weights = {
        p.value.name: rng.normal(size=p.value.type.shape(decode.dims)) * 0.4  # type: ignore[union-attr]
        for p in decode.function.params
        if p.role == "weight"
    }
    padded = np.array([PROMPT + [0] * (CAPACITY - len(PROMPT))])
    used = {p.value.name for p in prefill.function.params}
    inputs = {n: a for n, a in weights.items() if n in used} | {"tokens": padded}
    _, keys, values = run_graph(prefill, inputs, {"len": len(PROMPT)})
    tokens = list(PROMPT)
    for token in NEXT:
        state = {"tokens": np.array([[token]]), "cache_k": keys, "cache_v": values}
        logits, keys, values = run_graph(decode, weights | state, {"pos": len(tokens)})
        tokens.append(token)
        np.testing.assert_allclose(logits[0, 0], _logits(tokens, weights)[-1], rtol=1e-9)
