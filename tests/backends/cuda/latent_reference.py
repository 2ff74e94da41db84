"""What a latent attention block must compute, in float64, and inputs for it."""

from dataclasses import dataclass

import numpy as np
from decode_reference import from_kind, rotated, to_kind

from meshc.backends.cuda.kernels.latent_block.kernel import Latent


@dataclass
class Case:
    """Inputs of a latent attention block: weights as logical tensors of words, the cache a pool."""

    shape: Latent
    cached: np.ndarray
    residual: np.ndarray
    weights: dict
    latents: np.ndarray
    pages: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray


def make_case(shape: Latent, cached, seed=0):
    """Random inputs for requests that have ``cached`` tokens each; pages lie in random order."""
    rng = np.random.default_rng(seed)
    s = shape.sizes

    def words(*extents, spread=1.0):
        return to_kind(rng.standard_normal(extents) * spread, shape.dtype)

    e, h, r, n, p, d = s.hidden, s.heads, s.latent, s.query, s.rope, s.value
    most = max(cached) // shape.page + 1
    count = s.batch * most
    angles = np.arange(max(cached) + 1)[:, None] * 10000.0 ** (-np.arange(p // 2) / (p // 2))
    weights = {
        "norm": words(e),
        "latent_norm": words(r),
        "wq": words(s.query_width, h, n, spread=s.query_width**-0.5),
        "wq_rope": words(s.query_width, h, p, spread=s.query_width**-0.5),
        "w_latent": words(e, r, spread=e**-0.5),
        "w_rope": words(e, p, spread=e**-0.5),
        "w_uk": words(n, h, r, spread=r**-0.5),
        "w_uv": words(r, h, d, spread=r**-0.5),
        "wo": words(h, d, e, spread=(h * d) ** -0.5),
    }
    if s.query_rank:
        weights["w_query"] = words(e, s.query_rank, spread=e**-0.5)
        weights["query_norm"] = words(s.query_rank)
    return Case(
        shape,
        np.array(cached, np.int32),
        rng.standard_normal((s.batch, e)).astype(np.float32),
        weights,
        words(count, shape.page, r + p),
        rng.permutation(count).astype(np.int32).reshape(s.batch, most),
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
    )


def normed(x, gain, epsilon):
    """RMSNorm of a vector."""
    return x / np.sqrt((x**2).mean() + epsilon) * gain


def expected(case: Case):
    """Outputs [batch, hidden] and the new tokens [batch, latent + rope] as the cache holds them.

    Keys and values are expanded for every head, as the model is defined; nothing is absorbed.
    """
    shape, s = case.shape, case.shape.sizes
    w = {name: from_kind(words, shape.dtype) for name, words in case.weights.items()}
    out = np.zeros((s.batch, s.hidden))
    new = np.zeros((s.batch, s.key))
    for b, length in enumerate(case.cached):
        x = case.residual[b].astype(np.float64)
        turn = case.cosines[length], case.sines[length]
        h = normed(x, w["norm"], shape.epsilon)
        latent = normed(h @ w["w_latent"], w["latent_norm"], shape.latent_epsilon)
        rope = rotated((h @ w["w_rope"])[None], *turn)[0]
        new[b] = from_kind(to_kind(np.concatenate([latent, rope]), shape.dtype), shape.dtype)
        where = np.arange(length)
        old = case.latents[case.pages[b, where // shape.page], where % shape.page]
        every = np.concatenate([from_kind(old, shape.dtype), new[b][None]])
        latents, ropes = every[:, : s.latent], every[:, s.latent :]
        asked = (
            normed(h @ w["w_query"], w["query_norm"], shape.query_epsilon) if s.query_rank else h
        )
        q = np.tensordot(asked, w["wq"], 1)
        q_rope = rotated(np.tensordot(asked, w["wq_rope"], 1), *turn)
        keys = np.einsum("tr,nhr->thn", latents, w["w_uk"])
        values = np.einsum("tr,rhd->thd", latents, w["w_uv"])
        scores = np.einsum("hn,thn->ht", q, keys) + q_rope @ ropes.T
        weights = np.exp(scores * shape.scale - (scores * shape.scale).max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        out[b] = x + np.tensordot(np.einsum("ht,thd->hd", weights, values), w["wo"], 2)
    return out, new
