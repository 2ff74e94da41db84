"""Programs for Tenstorrent chips with what NumPy makes of them in float64, drawn by number."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import meshc

TILE = 32


@dataclass
class Case:
    """A model's text, its mesh, its tensors and results by name, and flags of compiling."""

    text: str
    mesh: str
    tensors: dict
    wanted: dict
    flags: dict

    def compiled(self, folder):
        """The program, written to ``folder`` beside its tensors."""
        model = Path(folder) / "model.mesh"
        model.write_text(self.text)
        compiled = meshc.compile(str(model), target="ttlang", mesh=self.mesh, **self.flags)
        for name, text in compiled.files.items():
            (Path(folder) / name).write_text(text)
        np.savez(Path(folder) / "tensors.npz", **self.tensors)


def silu(x):
    return x / (1 + np.exp(-x))


def rms_norm(x, gain, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return rms_norm(centred, gain, eps) + bias


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


FUNCTIONS = {
    "silu": silu,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
}
KINDS = ("product", "norm", "softmax", "feed-forward")


def drawn(seed):
    """A product, norm, softmax or gated layer on 1x1 to 4x4 nodes."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    columns, rows = (int(rng.choice([1, 2, 4])) for _ in range(2))
    step = TILE * max(columns, rows)
    m = TILE * rows * int(rng.integers(1, 3))
    k, n = (step * int(rng.integers(1, 3)) for _ in range(2))

    def tensor(*shape):
        return rng.standard_normal(shape) / (math.sqrt(shape[0]) if len(shape) > 1 else 1)

    x, w, gain, bias = tensor(m, k) * math.sqrt(m), tensor(k, n), tensor(k), tensor(k)
    given = {"x": x}
    if kind == "product":
        name = str(rng.choice([*FUNCTIONS, ""]))
        body, wanted = (
            f"{name}(x @ w)" if name else "x @ w",
            FUNCTIONS.get(name, lambda y: y)(x @ w),
        )
        given, params, end = {"x": x, "w": w}, "w[K, N]", "N"
    elif kind == "norm" and rng.integers(2):
        given, params, end = {"x": x, "g": gain}, "g[K]", "K"
        body, wanted = "rms_norm(x, g, 1e-5) * 0.5", rms_norm(x, gain) * 0.5
    elif kind == "norm":
        given, params, end = {"x": x, "g": gain, "b": bias}, "g[K], b[K]", "K"
        body, wanted = "layer_norm(x, g, b, 1e-5)", layer_norm(x, gain, bias)
    elif kind == "softmax":
        given, params, end = {"x": x, "b": bias}, "b[K]", "K"
        body, wanted = "softmax(x + b) + x", softmax(x + bias) + x
    else:
        up, down = tensor(k, n), tensor(n, k)
        given = {"x": x, "g": gain, "w": w, "up": up, "down": down}
        params, end = "g[K], w[K, N], up[K, N], down[N, K]", "K"
        body = "x + (silu(rms_norm(x, g, 1e-5) @ w) * (rms_norm(x, g, 1e-5) @ up)) @ down"
        h = rms_norm(x, gain)
        wanted = x + (silu(h @ w) * (h @ up)) @ down
    text = (
        f"model drawn(M={m}, K={k}, N={n}) {{\n  weights f32  accumulate f32\n  param {params}\n"
        f"  main(x[M, K]) -> [M, {end}] {{ return {body} }}\n}}\n"
    )
    return Case(text, f"{columns}x{rows}", given, {"result": wanted}, {})


def written(params, body, result, wanted, tensors, **extents):
    """A program of 64 rows on 2x2 nodes, of one expression."""
    dims = ", ".join(f"{name}={extent}" for name, extent in extents.items())
    text = (
        f"model written(L=64, {dims}) {{\n  weights f32  accumulate f32\n  param {params}\n"
        f"  main(x[L, E]) -> [{result}] {{ return {body} }}\n}}\n"
    )
    return Case(text, "2x2", tensors, {"result": wanted}, {})


def functions():
    """Each function of elements that is computed, by name."""
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((64, 64)), rng.standard_normal((64, 64)) / 8
    y = x @ w
    sigmoid = FUNCTIONS["sigmoid"]
    tanh_gelu = y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    known = {
        'gelu(x @ w, form = "tanh")': tanh_gelu,
        "quick_gelu(x @ w)": y * sigmoid(1.702 * y),
        "relu2(x @ w)": np.maximum(y, 0) ** 2,
        "clamp(x @ w, -0.3, 0.7)": np.clip(y, -0.3, 0.7),
        "exp(x @ w) * -0.1": np.exp(y) * -0.1,
    }
    return {
        body: written("w[E, F]", body, "L, F", wanted, {"x": x, "w": w}, E=64, F=64)
        for body, wanted in known.items()
    }


def heads():
    """Norms and biases of the lanes of heads."""
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((64, 64)), rng.standard_normal((64, 2, 64)) / 8
    each, bias = rng.standard_normal(64), rng.standard_normal((2, 64))
    y = np.einsum("le,ehd->lhd", x, w)
    params, sizes = "w[E, H, D], each[D], bias[H, D]", {"E": 64, "H": 2, "D": 64}
    tensors = {"x": x, "w": w, "each": each, "bias": bias}
    known = {
        "rms_norm(x @ w, each, 1e-5)": rms_norm(y, each),
        "softmax(x @ w)": softmax(y),
        "x @ w + bias": y + bias,
    }
    return {
        body: written(params, body, "L, H, D", wanted, tensors, **sizes)
        for body, wanted in known.items()
    }


LLAMA = """use blocks

model tiny(E={E}, H={H}, G={G}, D={D}, F={F}, V=32, layers={layers}, eps=1e-5, theta=10000.0) {{
  weights f32  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)
    }}
    return x when prefill
    return rms_norm(x, final_norm, eps) @ lm_head
  }}
}}
"""


def rotated(x, theta=10000.0):
    """Pairs of lanes i and i + D/2 of ``x [L, heads, D]``, turned by the position of the row."""
    rows, _, lanes = x.shape
    angle = np.outer(np.arange(rows), theta ** (-2 * np.arange(lanes // 2) / lanes))[:, None]
    first, second = x[..., : lanes // 2], x[..., lanes // 2 :]
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle),
         first * np.sin(angle) + second * np.cos(angle)], -1,
    )  # fmt: skip


def llama(seed, mesh, tokens, window=0, **sizes):
    """The prompt of ``tokens`` tokens of a tiny Llama, whose rows see the last ``window`` ones if
    that is not 0: its rows behind all layers, and its cached values."""
    rng = np.random.default_rng(seed)
    e, h, g, d, f, layers = (sizes[name] for name in ("E", "H", "G", "D", "F", "layers"))

    def tensor(*shape, over=1):
        return rng.standard_normal(shape) / math.sqrt(over)

    tensors = {
        "x": tensor(1, tokens, e),
        "attn_norm": tensor(layers, e),
        "wq": tensor(layers, e, h, d, over=e),
        "wk": tensor(layers, e, g, d, over=e),
        "wv": tensor(layers, e, g, d, over=e),
        "wo": tensor(layers, h, d, e, over=h * d),
        "ffn_norm": tensor(layers, e),
        "w_gate": tensor(layers, e, f, over=e),
        "w_up": tensor(layers, e, f, over=e),
        "w_down": tensor(layers, f, e, over=f),
    }
    x, values = tensors["x"][0], []
    for layer in range(layers):
        w = {name: tensor[layer] for name, tensor in tensors.items() if name != "x"}
        normed = rms_norm(x, w["attn_norm"])
        q, k, v = (np.einsum("le,ehd->lhd", normed, w[name]) for name in ("wq", "wk", "wv"))
        keys, own = (np.repeat(part, h // g, 1) for part in (rotated(k), v))
        scores = np.einsum("lhd,shd->hls", rotated(q), keys) / math.sqrt(d)
        behind = np.subtract.outer(np.arange(tokens), np.arange(tokens))
        scores[:, (behind < 0) | (behind >= (window or tokens))] = -np.inf
        x = x + np.einsum("hls,shd,hde->le", softmax(scores), own, w["wo"])
        normed = rms_norm(x, w["ffn_norm"])
        x = x + (silu(normed @ w["w_gate"]) * (normed @ w["w_up"])) @ w["w_down"]
        values.append(v[None])
    flags = {"phase": "prefill", "seq": tokens}
    wanted = {"x_4": x[None], "cache_v_2": np.stack(values)}
    text = LLAMA.format(**sizes)
    if window:
        usual = "llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)"
        seen = "rope(h @ wq, theta), rope(h @ wk, theta), h @ wv"
        own = f"x + gqa_attention({seen}, window = {window}) @ wo"
        text = text.replace(f"x = {usual}", f"h = rms_norm(x, attn_norm, eps)\n      x = {own}")
        assert usual not in text
    return Case(text, mesh, tensors, wanted, flags)
