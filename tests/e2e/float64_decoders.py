"""Decoders of many kinds: their text in the language, their weights, and the meaning of one step in
NumPy and float64, which shares no code with the compiler.

A step reads one token of each request behind what its caches hold, so any position can be asked for
at once. What kernels keep of 16 bits is rounded here as well: caches, and the left sides of
products where a batch leaves no room for what rounding left. All else is exact, so that what
remains is the noise of f32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import erf

import coded_caches
import numpy as np

EPS = 1e-5
_MOST_EXACT = 4  # requests whose left sides of products are two values each


@dataclass(frozen=True)
class Decoder:
    """A decoder of ``layers`` layers: ``hidden`` values, ``heads`` query heads over ``groups`` key
    heads of ``lanes`` lanes, ``features`` of the feed-forward layer, ``words`` of the vocabulary.

    ``norm``: rms, layer, or layer with a bias; ``where``: before blocks, behind them, or both.
    ``head_norm``: of each head's queries and keys, less their mean where it is ``centred``, or of
    all together. ``biases`` names those that there are: q, o, f. ``rope``: style, of ``rotated``
    lanes (0: all), with another base but in every ``local``-th layer; none and ``learned``
    positions. ``window`` with its ``every`` or ``but``. Constants are left out where they are 0.
    Caches are ``coded`` (:mod:`coded_caches`). ``renamed`` gives params other names. With
    ``experts`` a token goes to ``chosen`` of them, whose gates may be ``normalised``.
    """

    hidden: int = 64
    heads: int = 4
    groups: int = 2
    lanes: int = 16
    features: int = 96
    words: int = 50
    layers: int = 2
    norm: str = "rms"
    where: str = "before"
    head_norm: str = ""
    biases: str = ""
    rope: str = "half"
    rotated: int = 0
    local: int = 0
    learned: bool = False
    window: int = 0
    every: int = 1
    but: int = 0
    sink: bool = False
    cap: float = 0.0
    scale: float = 0.0
    embedded: float = 0.0
    residual: float = 0.0
    divided: float = 0.0
    logit_cap: float = 0.0
    activation: str = "silu"
    gated: bool = True
    clamped: float = 0.0
    parallel: bool = False
    tied: bool = False
    coded: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    theta: float = 10000.0
    local_theta: float = 100.0
    experts: int = 0
    chosen: int = 0
    normalised: bool = False

    # --- the text

    def text(self) -> str:
        """The model in the language."""
        head = (
            f"E={self.hidden}, H={self.heads}, G={self.groups}, D={self.lanes}, F={self.features}, "
        )
        head += f"V={self.words}, layers={self.layers}"
        if self.learned:
            head += ", P=4096"
        if self.experts:
            head += f", X={self.experts}"
        shapes = {name: dims for name, (dims, _) in self._params().items()}
        stacked = {name for name, (_, stack) in self._params().items() if stack}

        def declared(names: list[str]) -> str:
            return ", ".join(f"{name}[{', '.join(shapes[name])}]" for name in names)

        outer = declared([name for name in shapes if name not in stacked])
        inner = declared([name for name in shapes if name in stacked])
        body = "\n".join(f"      {line}" for line in self._layer())
        logits = "h @ transpose(embedding)" if self.tied else "h @ lm_head"
        if self.divided:
            logits = f"({logits}) / {self.divided}"
        end = [f"h = {self._norm_text('x', 'final')}", f"logits = {logits}"]
        if self.logit_cap:
            end.append(f"logits = tanh(logits / {self.logit_cap}) * {self.logit_cap}")
        x = (
            "embed(tokens, embedding, positions = places)"
            if self.learned
            else "embed(tokens, embedding)"
        )
        if self.embedded:
            x = f"{x} * {self.embedded}"
        share = "  heads H share G\n"
        closing = "\n".join(f"    {line}" for line in [*end, "return logits"])
        return self._renamed(
            f"model drawn({head}) {{\n  weights f16  accumulate f32\n{share}  param {outer}\n"
            f"  main(tokens[B, L]) -> [B, L, V] {{\n    x = {x}\n    repeat layers {{\n"
            f"      param {inner}\n{body}\n    }}\n    return x when prefill\n{closing}\n  }}\n}}\n"
        )

    def _renamed(self, text: str) -> str:
        for old, new in self.renamed:
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    def _norm_text(self, value: str, name: str) -> str:
        if self.norm == "rms":
            return f"rms_norm({value}, {name}_gain, {EPS})"
        bias = f", {name}_bias" if self.norm == "layer with bias" else ""
        return f"layer_norm({value}, {name}_gain{bias}, eps = {EPS})"

    def _rope_text(self, value: str) -> str:
        if self.rope == "":
            return value
        words = f"rope({value}, {self.theta}, style = {self.rope}"
        if self.rotated:
            words += f", rotated = {self.rotated}"
        if self.local:
            words += f", but = {self.local}, local_theta = {self.local_theta}"
        return words + ")"

    def _layer(self) -> list[str]:
        lines = [f"h = {self._norm_text('x', 'attn')}" if self.where != "behind" else "h = x"]
        for name in "qkv":
            lines.append(f"{name} = h @ w{name}" + (f" + b{name}" if "q" in self.biases else ""))
            if self.head_norm and name != "v":
                kind = "layer" if self.head_norm == "centred" else "rms"
                lines.append(f"{name} = {kind}_norm({name}, {name}_norm, eps = {EPS})")
        lines += [f"q = {self._rope_text('q')}", f"keys = append(cache.k, {self._rope_text('k')})"]
        lines.append("values = append(cache.v, v)")
        scale = f"* {self.scale}" if self.scale else "/ sqrt(D)"
        lines.append(f"scores = q @ transpose(keys) {scale}")
        if self.cap:
            lines.append(f"scores = tanh(scores / {self.cap}) * {self.cap}")
        options = "mask = causal"
        if self.window:
            options += f", window = {self.window}"
            options += f", but = {self.but}" if self.but else f", every = {self.every}"
        if self.sink:
            options += ", sink = sinks"
        lines += [
            f"s = softmax(scores, {options})",
            "o = (s @ values) @ wo" + (" + bo" if "o" in self.biases else ""),
        ]
        if self.where != "before":
            lines.append(f"o = {self._norm_text('o', 'attn_out')}")
        if self.residual:
            lines.append(f"o = o * {self.residual}")
        if not self.parallel:
            lines.append("x = x + o")
        lines.append(f"h = {self._norm_text('x', 'ffn')}" if self.where != "behind" else "h = x")
        bias = (lambda n: f" + b{n}") if "f" in self.biases else (lambda n: "")
        if self.experts:
            how = f"{self.chosen}, normalise = {str(self.normalised).lower()}"
            lines.append(f"gates = top_k(softmax(h @ router), {how})")
        lines.append(f"a = h @ w1{bias(1)}")
        if self.clamped:
            lines.append(f"a = clamp(a, most = {self.clamped})")
        lines.append(f"a = {ACTIVATIONS[self.activation][0]}")
        if self.gated:
            lines.append(f"u = h @ w3{bias(3)}")
            if self.clamped:
                lines.append(f"u = clamp(u, least = -{self.clamped}, most = {self.clamped})")
            lines.append("a = a * u")
        if self.experts:
            lines.append("a = a * gates")
        lines.append(f"y = a @ w2{bias(2)}")
        if self.where != "before":
            lines.append(f"y = {self._norm_text('y', 'ffn_out')}")
        if self.residual:
            lines.append(f"y = y * {self.residual}")
        lines.append("x = x + o + y" if self.parallel else "x = x + y")
        return lines

    # --- the weights

    def _params(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """The dims of each param and whether each layer has its own."""
        found: dict[str, tuple[tuple[str, ...], bool]] = {"embedding": (("V", "E"), False)}
        if self.learned:
            found["places"] = (("P", "E"), False)
        if not self.tied:
            found["lm_head"] = (("E", "V"), False)

        def norm(name: str, stacked: bool = True) -> None:
            found[f"{name}_gain"] = (("E",), stacked)
            if self.norm == "layer with bias":
                found[f"{name}_bias"] = (("E",), stacked)

        norm("final", False)
        if self.where != "behind":
            norm("attn"), norm("ffn")
        if self.where != "before":
            norm("attn_out"), norm("ffn_out")
        own: dict[str, tuple[str, ...]] = {
            "wq": ("E", "H", "D"), "wk": ("E", "G", "D"), "wv": ("E", "G", "D"),
            "wo": ("H", "D", "E"), "w1": ("E", "F"), "w2": ("F", "E"),
        }  # fmt: skip
        if self.gated:
            own["w3"] = ("E", "F")
        if self.experts:
            own = {n: d if n[1:] not in "123" else ("E", "X", "F") for n, d in own.items()}
            own |= {"router": ("E", "X"), "w2": ("X", "F", "E")}
        if "q" in self.biases:
            own |= {"bq": ("H", "D"), "bk": ("G", "D"), "bv": ("G", "D")}
        if "o" in self.biases:
            own["bo"] = ("E",)
        if "f" in self.biases:
            own |= {"b1": ("F",), "b2": ("E",)} | ({"b3": ("F",)} if self.gated else {})
        if self.head_norm in ("each", "centred"):
            own |= {"q_norm": ("D",), "k_norm": ("D",)}
        elif self.head_norm == "all":
            own |= {"q_norm": ("H", "D"), "k_norm": ("G", "D")}
        if self.sink:
            own["sinks"] = ("H",)
        return found | {name: (dims, True) for name, dims in own.items()}

    def weights(self, seed: int, dtype: str) -> dict[str, np.ndarray]:
        """Random weights of the type, such that each product has sums of about 1."""
        rng = np.random.default_rng(seed)
        sizes = {
            "E": self.hidden, "H": self.heads, "G": self.groups, "D": self.lanes,
            "F": self.features, "V": self.words, "P": 4096, "X": self.experts,
        }  # fmt: skip
        inputs = {
            "wq": "E",
            "wk": "E",
            "wv": "E",
            "wo": "HD",
            "w1": "E",
            "w2": "F",
            "w3": "E",
            "lm_head": "E",
            "router": "E",
        }
        found = {}
        for name, (dims, stacked) in self._params().items():
            shape = ([self.layers] if stacked else []) + [sizes[d] for d in dims]
            drawn = rng.standard_normal(shape)
            if name in inputs:
                drawn = drawn / np.sqrt(np.prod([sizes[d] for d in inputs[name]]))
            elif name.endswith(("gain", "norm")):
                drawn = 1 + 0.3 * drawn
            elif name.endswith("bias") or name.startswith("b"):
                drawn = 0.5 * drawn
            found[name] = rounded(drawn, dtype)
        return found

    def named(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``weights`` by the names that the text has."""
        names = dict(self.renamed)
        return {names.get(name, name): weight for name, weight in weights.items()}

    # --- the meaning

    def cached(self, requests: int, capacity: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the caches, [layers, requests, tokens, heads, lanes]."""
        shape = (self.layers, requests, capacity, self.groups, self.lanes)
        return {"cache.k": shape, "cache.v": shape}

    def stored(self, cache: str) -> np.ndarray:
        """The lanes of a row of a cache in the order in which kernels keep them: those of a pair
        that turns are neighbours."""
        order = np.arange(self.lanes)
        if cache == "cache.k" and self.rope == "half":
            runs = order.reshape(-1, 2, (self.rotated or self.lanes) // 2)
            order = runs.swapaxes(1, 2).reshape(-1)
        return order

    def step(
        self,
        weights: dict[str, np.ndarray],
        caches: dict[str, np.ndarray],
        tokens,
        positions,
        dtype: str,
        left_rows: Mapping[str, np.ndarray] | None = None,
        left: Left | None = None,
    ) -> np.ndarray:
        """Logits [requests, words]; the rows of the tokens are written to ``caches``. Attention has
        them as ``left_rows``, caches that a kernel left, which may round a row the other way.
        ``left`` rounds left sides of products, by default as steps of these requests do."""
        tokens, positions = np.asarray(tokens), np.asarray(positions)
        there = (tokens >= 0)[:, None]
        x = np.where(there, weights["embedding"][np.maximum(tokens, 0)], 0.0)
        if self.learned:
            x = x + weights["places"][positions]
        x = x * (self.embedded or 1.0)
        left = left or Left(dtype, len(tokens))
        for n in range(self.layers):
            own = {
                name: weights[name][n] for name, (_, stacked) in self._params().items() if stacked
            }
            x = self._step_of_layer(x, own, n, caches, positions, left, left_rows)
        h = left(self._normed(x, weights, "final"))
        logits = (
            h
            @ (weights["embedding"].T if self.tied else weights["lm_head"])
            / (self.divided or 1.0)
        )
        return np.tanh(logits / self.logit_cap) * self.logit_cap if self.logit_cap else logits

    def _normed(self, x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
        gain = w[f"{name}_gain"]
        if self.norm == "rms":
            return rms(x, gain)
        x = x - x.mean(-1, keepdims=True)
        return rms(x, gain) + w.get(f"{name}_bias", 0.0)

    def _turned(self, x: np.ndarray, positions: np.ndarray, n: int) -> np.ndarray:
        """Pairs of lanes of [requests, heads, lanes] turned by their angles."""
        if self.rope == "":
            return x
        theta = self.local_theta if self.local and (n + 1) % self.local else self.theta
        count = self.rotated or self.lanes
        half = count // 2
        angle = positions[:, None] * theta ** (-2.0 * np.arange(half) / count)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first = np.arange(half) if self.rope == "half" else 2 * np.arange(half)
        second = first + (half if self.rope == "half" else 1)
        found = x.copy()
        found[..., first] = x[..., first] * cos - x[..., second] * sin
        found[..., second] = x[..., second] * cos + x[..., first] * sin
        return found

    def kept(self, rows: np.ndarray, dtype: str) -> np.ndarray:
        """Rows as caches have them: coded, or rounded to a 16-bit type."""
        return coded_caches.kept(rows) if self.coded else rounded(rows, dtype)

    def _window(self, n: int) -> int:
        """How many tokens a layer sees, 0 for all."""
        if not self.window:
            return 0
        there = (n + 1) % self.but != 0 if self.but else n % self.every == 0
        return self.window if there else 0

    def _step_of_layer(
        self, x, w, n: int, caches, positions, left: Left, left_rows=None
    ) -> np.ndarray:
        h = left(self._normed(x, w, "attn") if self.where != "behind" else x)
        q, k, v = (
            np.einsum("be,ehd->bhd", h, w[f"w{name}"]) + w.get(f"b{name}", 0.0) for name in "qkv"
        )
        if self.head_norm:
            axes = (-2, -1) if self.head_norm == "all" else (-1,)
            if self.head_norm == "centred":
                q, k = (part - part.mean(-1, keepdims=True) for part in (q, k))
            q, k = rms(q, w["q_norm"], axes), rms(k, w["k_norm"], axes)
        q, k = (self._turned(part, positions, n) for part in (q, k))
        o = np.zeros((len(x), self.heads, self.lanes))
        for b, at in enumerate(positions):
            keys, values = (caches[f"cache.{name}"][n, b] for name in "kv")
            keys[at], values[at] = (self.kept(part[b], left.dtype) for part in (k, v))
            if left_rows is not None:
                keys, values = (
                    with_row(part, left_rows[f"cache.{name}"][n, b], at)
                    for name, part in (("k", keys), ("v", values))
                )
            window = self._window(n)
            seen = slice(max(at + 1 - window, 0) if window else 0, at + 1)
            for head in range(self.heads):
                group = head // (self.heads // self.groups)
                scores = keys[seen, group] @ q[b, head] * (self.scale or 1 / np.sqrt(self.lanes))
                if self.cap:
                    scores = np.tanh(scores / self.cap) * self.cap
                top = max(scores.max(), w["sinks"][head] if self.sink else -np.inf)
                shares = np.exp(scores - top)
                total = shares.sum() + (np.exp(w["sinks"][head] - top) if self.sink else 0.0)
                o[b, head] = shares @ values[seen, group] / total
        o = np.einsum("bhd,hde->be", left(o), w["wo"]) + w.get("bo", 0.0)
        o = self._normed(o, w, "attn_out") if self.where != "before" else o
        o = o * (self.residual or 1.0)
        between = x if self.parallel else x + o
        h = left(self._normed(between, w, "ffn") if self.where != "behind" else between)
        inner = "be,exf->bxf" if self.experts else "be,ef->bf"
        a = np.einsum(inner, h, w["w1"]) + w.get("b1", 0.0)
        if self.clamped:
            a = np.minimum(a, self.clamped)
        a = ACTIVATIONS[self.activation][1](a)
        if self.gated:
            u = np.einsum(inner, h, w["w3"]) + w.get("b3", 0.0)
            a = a * (np.clip(u, -self.clamped, self.clamped) if self.clamped else u)
        if self.experts:
            gates = self._gates(h @ w["router"], left)
            y = np.einsum("bxf,xfe->be", left(a * gates[..., None]), w["w2"])
        else:
            y = left(a) @ w["w2"] + w.get("b2", 0.0)
        y = self._normed(y, w, "ffn_out") if self.where != "before" else y
        y = y * (self.residual or 1.0)
        return x + o + y if self.parallel else between + y

    def _gates(self, scores: np.ndarray, left: Left) -> np.ndarray:
        """Of each token [tokens, experts], 0 for those that it does not go to."""
        order = np.sort(scores, -1)
        if self.chosen < self.experts:
            apart = order[:, -self.chosen] - order[:, -self.chosen - 1]
            left.nearest = min(left.nearest, float((apart / np.abs(scores).max(-1)).min()))
        gates = np.exp(scores - order[:, -1:])
        gates = gates / gates.sum(-1, keepdims=True) * (scores >= order[:, [-self.chosen]])
        return gates / gates.sum(-1, keepdims=True) if self.normalised else gates


@dataclass
class Left:
    """Left sides of products as kernels have them: of a few requests as they are, of more
    rounded. What it was asked of has the ``nearest`` choice of experts: how far the scores of one
    that was chosen and of one that was not are apart, as a part of the largest score."""

    dtype: str
    requests: int
    nearest: float = float("inf")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x if self.requests <= _MOST_EXACT else rounded(x, self.dtype)

    def both(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What ``x`` is rounded to, and what lies on its other side."""
        near = rounded(x, self.dtype)
        beyond = x + (x - near) + np.sign(x - near) * np.abs(x) * 2.0**-20
        return near, rounded(beyond, self.dtype)


def with_row(cache: np.ndarray, left: np.ndarray, at: int) -> np.ndarray:
    """``cache`` with the row at ``at`` of the one that a kernel left."""
    found = cache.copy()
    found[at] = left[at]
    return found


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` rounded to nearest even of f16 or bf16."""
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float64)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def rms(x: np.ndarray, gain: np.ndarray, axes: tuple[int, ...] = (-1,)) -> np.ndarray:
    """RMSNorm over ``axes``."""
    return x / np.sqrt(np.mean(x * x, axes, keepdims=True) + EPS) * gain


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(erf)(x)


ACTIVATIONS = {
    "silu": ("silu(a)", lambda x: x / (1 + np.exp(-x))),
    "gelu": ("gelu(a)", lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2),
    "gelu_tanh": (
        "gelu(a, form = tanh)",
        lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    "relu2": ("relu2(a)", lambda x: np.maximum(x, 0) ** 2),
    "sigmoid": ("sigmoid(a)", lambda x: 1 / (1 + np.exp(-x))),
    "tanh": ("tanh(a)", np.tanh),
    "quick_gelu": ("quick_gelu(a)", lambda x: x / (1 + np.exp(-1.702 * x))),
    "scaled sigmoid": ("a * sigmoid(a * 1.702)", lambda x: x / (1 + np.exp(-1.702 * x))),
}
