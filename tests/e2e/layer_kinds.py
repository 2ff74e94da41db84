"""Decoders whose layers are of given kinds: their text in the language, their weights, and their
meaning in NumPy and float64, which sees all tokens at once and shares no code with the compiler."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import QUICK
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

HIDDEN, HEAD, WORDS, EPS = 64, 64, 40, 1e-5
PROMPT, FOLLOWING = [3, 17, 0, 39, 8], [39, 5, 21]


@dataclass(frozen=True)
class Kind:
    """Layers of one kind: how many, their heads, heads of keys, features, angles, and whether
    the feed-forward layer is gated, and queries and keys of each head are normed."""

    layers: int
    heads: int
    kv_heads: int
    features: int
    theta: float
    gated: bool = True
    normed: bool = False

    def text(self, n: int) -> str:
        """The loop of these layers, the ``n``-th of the model."""
        keys = "G" if self.heads > self.kv_heads else "H"
        names = ["n1", "wq", "wk", "wv", "wo", "nq", "nk", "n2", "w1", "w2", "w3"]
        names += ["H", "G", "F", "N"]
        gate = "silu(h @ w1) * (h @ w3)" if self.gated else "silu(h @ w1)"
        q, k, gains = "h @ wq", "h @ wk", ""
        if self.normed:
            q, k, gains = f"rms_norm({q}, nq)", f"rms_norm({k}, nk)", ", nq[D], nk[D]"
        found = f"""    repeat N {{
      param n1[E], wq[E, H, D], wk[E, {keys}, D], wv[E, {keys}, D], wo[H, D, E]
      param n2[E], w1[E, F], w2[F, E]{", w3[E, F]" if self.gated else ""}{gains}
      h = rms_norm(x, n1)
      q = rope({q}, theta = {self.theta})
      keys = append(cache.k, rope({k}, theta = {self.theta}))
      values = append(cache.v, h @ wv)
      x = x + softmax(q @ transpose(keys) / sqrt(D), mask = causal) @ values @ wo
      h = rms_norm(x, n2)
      x = x + ({gate}) @ w2
    }}
"""
        return re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{n}", found)

    def weights(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random weights of all layers by their names."""
        shapes = {
            "n1": (HIDDEN,), "wq": (HIDDEN, self.heads, HEAD), "wk": (HIDDEN, self.kv_heads, HEAD),
            "wv": (HIDDEN, self.kv_heads, HEAD), "wo": (self.heads, HEAD, HIDDEN), "n2": (HIDDEN,),
            "w1": (HIDDEN, self.features), "w2": (self.features, HIDDEN),
        }  # fmt: skip
        if self.gated:
            shapes["w3"] = shapes["w1"]
        if self.normed:
            shapes |= {"nq": (HEAD,), "nk": (HEAD,)}
        found = {name: rounded(rng, (self.layers, *shape)) for name, shape in shapes.items()}
        # Gains by which some tokens weigh more than others.
        found |= {name: 1 + gain for name, gain in found.items() if name.startswith("n")}
        return {f"{name}_{n}": weight for name, weight in found.items()}

    def layer(self, x, w):
        """The residual stream [tokens, hidden] behind a layer with the weights ``w``."""
        h = norm(x, w["n1"])
        q, k, v = (np.einsum("le,ehd->lhd", h, w[name]) for name in ("wq", "wk", "wv"))
        if self.normed:
            q, k = norm(q, w["nq"]), norm(k, w["nk"])
        q, k = (rotated(part, self.theta) for part in (q, k))
        k, v = (np.repeat(part, self.heads // self.kv_heads, 1) for part in (k, v))
        scores = np.einsum("lhd,mhd->hlm", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hlm,mhd,hde->le", shares, v, w["wo"])
        h = norm(x, w["n2"])
        inner = h @ w["w1"]
        inner = inner / (1 + np.exp(-inner))
        return x + (inner * (h @ w["w3"]) if self.gated else inner) @ w["w2"]


def rounded(rng, shape):
    return (0.2 * rng.standard_normal(shape)).astype(np.float16).astype(np.float64)


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPS) * gain


def rotated(x, theta):
    """Pairs of lanes half a head apart, [tokens, heads, lanes]."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def text_of(kinds):
    sizes = {"E": HIDDEN, "D": HEAD, "V": WORDS}
    for n, kind in enumerate(kinds):
        sizes |= {f"H_{n}": kind.heads, f"F_{n}": kind.features, f"N_{n}": kind.layers}
        if kind.heads > kind.kv_heads:
            sizes[f"G_{n}"] = kind.kv_heads
    shown = ", ".join(f"{name}={extent}" for name, extent in sizes.items())
    shares = "".join(
        f"  heads H_{n} share G_{n}\n" for n, k in enumerate(kinds) if k.heads > k.kv_heads
    )
    return f"""use blocks
model stages({shown}) {{
{shares}  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
{"".join(kind.text(n) for n, kind in enumerate(kinds))}    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""


def weights_of(kinds):
    rng = np.random.default_rng(5)
    shapes = {"embedding": (WORDS, HIDDEN), "final_norm": (HIDDEN,), "lm_head": (HIDDEN, WORDS)}
    found = {name: rounded(rng, shape) for name, shape in shapes.items()}
    for n, kind in enumerate(kinds):
        found |= kind.weights(n, rng)
    return found


def expected(kinds, weights, ids):
    """Logits of every token of ``ids``, in float64."""
    x = weights["embedding"][ids]
    for n, kind in enumerate(kinds):
        for layer in range(kind.layers):
            end = f"_{n}"
            own = {
                name.removesuffix(end): w[layer] for name, w in weights.items() if end in name[-2:]
            }
            x = kind.layer(x, own)
    return norm(x, weights["final_norm"]) @ weights["lm_head"]


def compiled(folder: Path, kinds, **options):
    (folder / "stages.mesh").write_text(text_of(kinds))
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    return compile_loaded(load_any(str(folder / "stages.mesh"), report), request, (), report)


# As a part of the largest logit. Rounding caches and inputs of products to f16 moves logits by less
# than half of it; angles, gains or weights of another stage move some of them by ten times as much.
BOUND = 2.0**-7


def check(result, kinds):
    """A prompt in chunks and steps behind it, then the same tokens by decode steps alone, give the
    logits of float64."""
    program, weights = from_json(result.files["manifest.json"]), weights_of(kinds)
    model = LanguageModel(
        program, CpuMachine(program.kernels, result.files, toolchain=QUICK), weights
    )
    ids = [*PROMPT, *FOLLOWING]
    wanted = expected(kinds, weights, ids)
    found = [model.prefill(PROMPT)]
    for position, token in enumerate(FOLLOWING, start=len(PROMPT)):
        found.append(model.step([token], [position])[0])
    _close(found, wanted[len(PROMPT) - 1 :])
    _close([model.step([t], [n])[0] for n, t in enumerate(ids)], wanted)


def _close(found, wanted):
    error = np.abs(np.array(found) - wanted).max(-1) / np.abs(wanted).max(-1)
    assert error.max() <= BOUND, error
