"""Decoders with latent attention that are drawn, as those of ``drawn_decoders`` are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from drawn_decoders import Drawn, drawn_decoder
from float64_decoders import Left, rms, rounded, with_row


@dataclass(frozen=True)
class LatentDecoder:
    """A decoder that caches ``latent`` values and a key of ``turned`` lanes for each token. Queries
    have ``plain`` more lanes, and are products of ``low`` values where these are not 0."""

    hidden: int
    heads: int
    latent: int
    plain: int
    turned: int
    lanes: int
    features: int
    words: int
    layers: int
    low: int
    renamed: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The model in the language."""
        sizes = {name: self._sizes()[name] for name in "EHRNPDFV"} | {"layers": self.layers}
        if self.low:
            sizes["Q"] = self.low
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        inner = ", ".join(
            f"{name}[{', '.join(dims)}]" for name, (dims, own) in self._params().items() if own
        )
        given = "t" if self.low else "h"
        query = "      t = rms_norm(h @ w_low, low_gain, 1e-5)\n" if self.low else ""
        return f"""use blocks
model latent({shown}) {{
  weights f16  accumulate f32
  param embedding[V, E], lm_head[E, V], final_gain[E]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param {inner}
      h = rms_norm(x, attn_gain, 1e-5)
{query}      latent = rms_norm(h @ w_latent, latent_gain, 1e-5)
      q_rope = rope({given} @ w_turned, style = interleaved)
      k_rope = rope(h @ w_key, style = interleaved)
      x = x + mla_attention({given} @ w_plain, q_rope, latent, k_rope, w_uk, w_uv, 0.9) @ wo
      h = rms_norm(x, ffn_gain, 1e-5)
      x = x + swiglu(h, w1, w3, w2)
    }}
    return x when prefill
    return rms_norm(x, final_gain, 1e-5) @ lm_head
  }}
}}
"""

    def _sizes(self) -> dict[str, int]:
        return {
            "E": self.hidden, "H": self.heads, "R": self.latent, "N": self.plain,
            "P": self.turned, "D": self.lanes, "F": self.features, "V": self.words, "Q": self.low,
        }  # fmt: skip

    def _params(self) -> dict[str, tuple[str, bool]]:
        """The dims of each param and whether each layer has its own."""
        first = "Q" if self.low else "E"
        found = {
            "embedding": ("VE", False), "lm_head": ("EV", False), "final_gain": ("E", False),
            "attn_gain": ("E", True), "ffn_gain": ("E", True), "latent_gain": ("R", True),
            "w_latent": ("ER", True), "w_key": ("EP", True), "w_plain": (f"{first}HN", True),
            "w_turned": (f"{first}HP", True), "w_uk": ("NHR", True), "w_uv": ("RHD", True),
            "wo": ("HDE", True), "w1": ("EF", True), "w3": ("EF", True), "w2": ("FE", True),
        }  # fmt: skip
        return found | ({"w_low": ("EQ", True), "low_gain": ("Q", True)} if self.low else {})

    def weights(self, seed: int, dtype: str) -> dict[str, np.ndarray]:
        """Random weights of the type, such that each product has sums of about 1."""
        rng, sizes, found = np.random.default_rng(seed), self._sizes(), {}
        for name, (dims, own) in self._params().items():
            drawn = rng.standard_normal([self.layers] * own + [sizes[d] for d in dims])
            if name.endswith("gain"):
                drawn = 1 + 0.3 * drawn
            elif name != "embedding":
                drawn = drawn / np.sqrt(sizes[dims[0]] * (self.lanes if name == "wo" else 1))
            found[name] = rounded(drawn, dtype)
        return found

    def named(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``weights`` by the names that the text has."""
        return weights

    def cached(self, requests: int, capacity: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the caches, [layers, requests, tokens, 1, lanes]."""
        lead = (self.layers, requests, capacity, 1)
        return {"cache.latent": (*lead, self.latent), "cache.rope": (*lead, self.turned)}

    def stored(self, cache: str) -> np.ndarray:
        """The lanes of a row of a cache, as they are."""
        return np.arange(self.latent if cache == "cache.latent" else self.turned)

    def step(
        self, weights: dict[str, np.ndarray], caches: dict[str, np.ndarray], tokens: np.ndarray,
        positions: np.ndarray, dtype: str, left_rows: Mapping[str, np.ndarray] | None = None,
        left: Left | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Logits [requests, words]; the rows of the tokens are written to ``caches``. Attention has
        them as ``left_rows``, caches that a kernel left, which may round a row the other way.
        ``left`` rounds left sides of products, by default as steps of these requests do."""
        x, left = weights["embedding"][tokens], left or Left(dtype, len(tokens))
        for n in range(self.layers):
            w = {name: weights[name][n] for name, (_, own) in self._params().items() if own}
            h = left(rms(x, w["attn_gain"]))
            latent, key = rms(h @ w["w_latent"], w["latent_gain"]), h @ w["w_key"]
            t = left(rms(h @ w["w_low"], w["low_gain"])) if self.low else h
            plain, turned = (np.einsum("be,ehn->bhn", t, w[f"w_{k}"]) for k in ("plain", "turned"))
            turned = self._turned(turned, positions)
            key = self._turned(key[:, None], positions)[:, 0]
            attended = np.zeros((len(x), self.heads, self.latent))
            absorbed = np.einsum("bhn,nhr->bhr", left(plain), w["w_uk"])
            for b, at in enumerate(positions):
                latents, keys = (caches[f"cache.{k}"][n, b, :, 0] for k in ("latent", "rope"))
                latents[at], keys[at] = rounded(latent[b], dtype), rounded(key[b], dtype)
                if left_rows is not None:
                    latents, keys = (
                        with_row(part, left_rows[f"cache.{name}"][n, b, :, 0], at)
                        for name, part in (("latent", latents), ("rope", keys))
                    )
                seen = slice(0, at + 1)
                scores = absorbed[b] @ latents[seen].T + turned[b] @ keys[seen].T
                scores *= 0.9 / np.sqrt(self.plain + self.turned)
                shares = np.exp(scores - scores.max(-1, keepdims=True))
                attended[b] = shares / shares.sum(-1, keepdims=True) @ latents[seen]
            values = np.einsum("bhr,rhd->bhd", left(attended), w["w_uv"])
            x = x + np.einsum("bhd,hde->be", left(values), w["wo"])
            h = left(rms(x, w["ffn_gain"]))
            gate = h @ w["w1"]
            x = x + left(gate / (1 + np.exp(-gate)) * (h @ w["w3"])) @ w["w2"]
        return left(rms(x, weights["final_gain"])) @ weights["lm_head"]

    def _turned(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        powers = 10000.0 ** (-np.arange(0, self.turned, 2) / self.turned)
        angle = positions[:, None, None] * powers
        a, b, cos, sin = x[..., ::2], x[..., 1::2], np.cos(angle), np.sin(angle)
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def drawn_latent_decoder(seed: int) -> Drawn:
    """The ``seed``-th decoder, compiled and run as the other one of that number."""
    rng = random.Random(seed)
    decoder = LatentDecoder(
        hidden=rng.choice([32, 48, 64, 80]),
        heads=rng.choice([1, 2, 3, 4, 6, 16, 34]),
        latent=rng.choice([16, 32, 48, 64, 160]),
        plain=rng.choice([16, 32, 48]),
        turned=rng.choice([8, 16, 32]),
        lanes=rng.choice([8, 16, 20, 32]),
        features=rng.choice([32, 48, 64]),
        words=rng.choice([17, 33, 50]),
        layers=rng.choice([1, 2]),
        low=rng.choice([0, 0, 24, 32]),
    )
    other = drawn_decoder(seed)
    tokens, merge = rng.choice([0, 16, 32]), rng.choice([False, True])
    return replace(other, decoder=decoder, parts=1, merge=merge, rows=16, tokens=tokens)
