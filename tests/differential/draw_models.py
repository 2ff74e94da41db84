"""Random models with caches: attention of all kinds, in layers, from tokens or from rows."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from bounded import Arithmetic
from building import Builder, Drawing, rope
from drawn_programs import Carried, Program, Repeat, Tensor, used_only
from operations import (
    Activation,
    Append,
    Binary,
    Dims,
    Embed,
    Product,
    RmsNorm,
    Scale,
    Softmax,
    TopK,
    Transpose,
)


def cached_model(random: Random, kinds: Arithmetic, tokens: bool, largest: int = 12) -> Program:
    """A decoder. With ``tokens`` it maps ids to logits, else rows to rows (and maybe more)."""
    draw = Drawing(random)
    extents = _small(draw, largest)
    return Model(draw, draw, extents | _experts(extents)).program(kinds, tokens)


def _small(draw: Drawing, largest: int) -> dict[str, int]:
    """Extents of a model of a few values."""
    groups = draw.weighted({1: 30, 2: 40, 3: 20, 4: 10})
    return {
        "E": draw.number(2, largest),
        "H": groups * draw.weighted({1: 40, 2: 40, 3: 20}),
        "G": groups,
        "D": 2 * draw.number(1, 4),
        "F": draw.number(1, largest + 4),
        "V": draw.number(2, 24),
    }


def _experts(extents: dict[str, int]) -> dict[str, int]:
    """Experts of some models: how many is drawn from a stream of its own, so that a seed gives
    models without experts whether or not there are others."""
    own = Drawing(Random(repr(extents)))
    return {"X": own.number(1, 9)} if own.chance(8) else {}


class Model:
    """Draws one model; what all its layers have in common is drawn once.

    ``common`` chooses norms and feed-forward layers, ``draw`` the rest. What few published models
    have is drawn ``oddness`` times as often as else. ``window`` is that of attention, 0 for none;
    ``factors`` are the constants by which "embedding", "residual" summands and "logits" are
    multiplied.
    """

    window = 0
    factors: Mapping[str, float] = MappingProxyType({})

    def __init__(
        self, draw: Drawing, common: Drawing, extents: dict[str, int], oddness: float = 1.0
    ) -> None:
        self.draw, self.oddness = draw, oddness
        self.extents = extents
        self.norm_eps = common.of([None, 1e-6, 1e-3])
        self.attention_eps = None if draw.chance(60) else draw.of([1e-5, 1e-6, 1e-2])
        self.gated = common.chance(73)
        self.activation = Activation(*common.of([("silu", ""), ("gelu", ""), ("gelu", "tanh")]))
        biases = {"inner", "outer"} if common.chance(20) else set()
        self.heads = self._heads()
        self.turn = None if self._odd(25) else rope(draw, self._turning_lanes())
        self.pre_norm, self.post_norm = not self._odd(15), self._odd(12)
        self.head_norm = self._odd(12)
        self.biases = biases | {b for b in ("qkv", "output") if draw.chance(20)}
        self.residual = not self._odd(8)
        self.parallel = self._odd(12)
        self.with_mlp = not self._odd(25)
        self.scaled = draw.weighted({"root": 75, "factor": 15, "none": 10})
        self.values_first = draw.chance(20)
        self.latent, self.latent_eps = "R" in extents, draw.of([1e-5, 1e-6, 1e-2])
        self.batch = ("B",) if not self._odd(20) else ()

    def _odd(self, percent: float) -> bool:
        return self.draw.chance(percent * self.oddness)

    def _heads(self) -> Dims:
        """Dims of keys beside their lanes: G, H where each head has its own, none where all heads
        share one."""
        extents = self.extents
        if "R" in extents or (extents["H"] == extents["G"] and self.draw.chance(60)):
            return ("H",)
        return () if extents["G"] == 1 and self.draw.chance(30) else ("G",)

    def program(self, kinds: Arithmetic, tokens: bool) -> Program:
        """Embedding or input, layers, head."""
        draw = self.draw
        top = Builder(draw, self.extents)
        inputs: tuple[Tensor, ...] = ()
        if tokens:
            self.batch = ("B",)
            top.param("table", *(("V", "E") if draw.chance(88) else ("E", "V")))
            x = top.apply(Embed("tokens"), self._table(top, "V", "E"), stem="x", inline=20)
        else:
            x = "x"
            inputs = (Tensor("x", (*self.batch, "L", "E")),)
            top.known[top.fresh("x")] = inputs[0].dims
        x = self._multiplied(top, x, "embedding")
        if self._odd(15):
            x = top.apply(Scale("{} * 1.5", 1.5), x, stem="x")
        if self._odd(10):
            x = self._norm(top, x, "E")
        start = x
        for _ in range(2 if self._odd(20) else 1):
            x = self._layers(top, x)
        early = x if draw.chance(60) else ""
        if self._odd(8):
            x = top.apply(Binary("+"), x, start, stem="x")
        returns = [self._head(top, x)] if tokens else [x]
        if not tokens and draw.chance(20):
            returns.append(top.apply(self.activation, x, stem="a", inline=30))
        program = Program(
            self.extents,
            inputs,
            tuple(top.params),
            tuple(top.statements),
            tuple(returns),
            kinds,
            tokens="tokens" if tokens else "",
            early=early if tokens else "",
            shared=("H", "G") if self.heads == ("G",) else None,
            flags=("on",),
        )
        return used_only(program)

    def _layers(self, top: Builder, x: str) -> str:
        """A layer of its own, or a repeat of layers."""
        if self._odd(20):
            return self._layer(top, x, f"{top.fresh('n')}_")
        count = top.dim("layers", self.draw.number(1, 3))
        inner = Builder(self.draw, self.extents, top)
        name = inner.fresh("c")
        inner.known[name] = top.dims(x)
        end = self._layer(inner, name, f"{top.fresh('n')}_" if top.statements else "")
        loop = Repeat(count, tuple(inner.params), (Carried(name, x, end),), tuple(inner.statements))
        top.give(loop, top.dims(x))
        return name

    def _layer(self, body: Builder, x: str, cache: str) -> str:
        h = self._norm(body, x, "E", self.attention_eps) if self.pre_norm else x
        attention = self._latent_attention if self.latent else self._attention
        attended = attention(body, h, cache)
        if self.parallel and self.with_mlp:
            both = body.apply(Binary("+"), attended, self._mlp(body, h), stem="o")
            return self._joined(body, x, both)
        x = self._joined(body, x, attended)
        if not self.with_mlp:
            return x
        h = self._norm(body, x, "E") if self.pre_norm else x
        return self._joined(body, x, self._mlp(body, h))

    def _joined(self, body: Builder, x: str, change: str) -> str:
        if self.post_norm:
            change = self._norm(body, change, "E")
        change = self._multiplied(body, change, "residual")
        if not self.residual:
            return change
        args = (x, change) if self.draw.chance(70) else (change, x)
        return body.apply(Binary("+"), *args, stem="x", inline=30)

    def _attention(self, body: Builder, h: str, cache: str) -> str:
        """Projections, rotation, caches, scores, weighted values, output."""
        if self.values_first:
            v = self._projected(body, h, self.heads, "v")
        q = self._projected(body, h, ("H",), "q")
        k = self._projected(body, h, self.heads, "k")
        if not self.values_first:
            v = self._projected(body, h, self.heads, "v")
        if self.head_norm:
            q, k = self._norm(body, q, "D"), self._norm(body, k, "D")
        if self.turn is not None:
            q, k = (body.apply(self.turn, name, stem="r") for name in (q, k))
        early = self._odd(15)
        if early:
            q = self._scores_scaled(body, q)
        keys = body.apply(Append(f"{cache}k"), k, stem="keys")
        values = body.apply(Append(f"{cache}v"), v, stem="values")
        shared = ("H", "G") if self.heads == ("G",) else None
        turned = Transpose(None if self.draw.chance(70) else ("S", "D"))
        kt = body.apply(turned, keys, stem="kt", inline=85)
        s = body.apply(Product(("D",), shared), q, kt, stem="s")
        if not early:
            s = self._scores_scaled(body, s)
        p = body.apply(Softmax("", True, self.window), s, stem="p", inline=60)
        o = body.apply(Product(("S",), shared), p, values, stem="o")
        out = body.weighted(o, ("H", "D"), ("E",), "wo")
        return self._biased(body, out, "output", "E")

    def _latent_attention(self, body: Builder, h: str, cache: str) -> str:
        """Multi-head latent attention with absorbed weights: queries of N lanes over latents of R
        values beside P rotary lanes, values of D; queries of a rank Q if there is such a dim."""
        t, run = h, ("E",)
        if "Q" in self.extents:
            t, run = self._norm(body, body.weighted(h, run, ("Q",)), "Q", self.latent_eps), ("Q",)
        q = body.weighted(t, run, ("H", "N"), "wq")
        q_rope = body.weighted(t, run, ("H", "P"), "wr")
        latent = self._norm(body, body.weighted(h, ("E",), ("R",)), "R", self.latent_eps)
        k_rope = body.weighted(h, ("E",), ("P",), "wk")
        if self.turn is not None:
            q_rope, k_rope = (body.apply(self.turn, name, stem="r") for name in (q_rope, k_rope))
        latents = body.apply(Append(f"{cache}latent"), latent, stem="latents")
        keys = body.apply(Append(f"{cache}rope"), k_rope, stem="keys")
        absorbed = body.weighted(q, ("N",), ("H", "R"), "uk")
        plain, rotary = (
            body.apply(Product(summed), left, body.apply(Transpose(), right, inline=85), stem="s")
            for summed, left, right in ((("R",), absorbed, latents), (("P",), q_rope, keys))
        )
        args = (plain, rotary) if self.draw.chance(70) else (rotary, plain)
        s = self._scores_scaled(body, body.apply(Binary("+"), *args, stem="s"), "N")
        p = body.apply(Softmax("", True), s, stem="p", inline=60)
        o = body.weighted(body.apply(Product(("S",)), p, latents, stem="o"), ("R",), ("H", "D"))
        return body.weighted(o, ("H", "D"), ("E",), "wo")

    def _multiplied(self, body: Builder, value: str, what: str) -> str:
        factor = self.factors.get(what)
        if factor is None:
            return value
        return body.apply(Scale(f"{{}} * {factor}", factor), value, stem="m", inline=50)

    def _scores_scaled(self, body: Builder, value: str, lane: str = "D") -> str:
        if self.scaled == "none":
            return value
        if self.scaled == "root":
            return body.apply(Scale(f"{{}} / sqrt({lane})", 1.0, lane), value, stem="s")
        return body.apply(Scale("0.3 * {}", 0.3), value, stem="s")

    def _turning_lanes(self) -> int:
        """Lanes that all rotary embeddings of the model have; 0 where they differ."""
        found = {self.extents[dim] for dim in ("D", "P") if dim in self.extents}
        return found.pop() if len(found) == 1 else 0

    def _projected(self, body: Builder, h: str, heads: Dims, stem: str) -> str:
        found = body.weighted(h, ("E",), (*heads, "D"), f"w{stem}")
        dims = ("D",) if self.draw.chance(4) else (*heads, "D")
        return self._biased(body, found, "qkv", *dims)

    def _biased(self, body: Builder, value: str, place: str, *dims: str) -> str:
        if (place in self.biases) == self._odd(3):
            return value
        return body.apply(Binary("+"), value, body.param("b", *dims), stem="s")

    def _norm(self, body: Builder, x: str, dim: str, eps: float | None = None) -> str:
        """A norm with an epsilon of its own or that of the model."""
        return body.apply(
            RmsNorm(eps or self.norm_eps), x, body.param("g", dim), stem="h", inline=30
        )

    def _expert_layers(self, body: Builder, h: str) -> str:
        """Feed-forward layers of experts, weighted by the gates of chosen ones."""
        draw, count = self.draw, self.extents["X"]
        scores = body.weighted(h, ("E",), ("X",), "router")
        whole = Softmax() if draw.chance(60) else Activation("sigmoid")
        scores = body.apply(whole, scores, stem="s")
        groups = draw.of([n for n in range(1, count + 1) if count % n == 0])
        kept, size = draw.number(1, groups), count // groups
        best = draw.number(1, min(2, size))
        chosen = draw.number(1, min(4, kept * size))
        choice = TopK(chosen, draw.chance(60), (groups, kept, best) if groups > 1 else (1, 1, 1))
        biases = [body.param("b", "X")] if draw.chance(30) else []
        gates = body.apply(choice, scores, *biases, stem="gates")
        wide = body.apply(self.activation, body.weighted(h, ("E",), ("X", "F"), "up"), stem="a")
        if self.gated:
            gate = body.weighted(h, ("E",), ("X", "F"), "gate")
            wide = body.apply(Binary("*"), wide, gate, stem="p")
        wide = body.apply(Binary("*"), wide, gates, stem="p")
        return body.weighted(wide, ("X", "F"), ("E",), "down")

    def _mlp(self, body: Builder, h: str) -> str:
        if "X" in self.extents:
            return self._expert_layers(body, h)
        up = self._biased(body, body.weighted(h, ("E",), ("F",), "up"), "inner", "F")
        if not self.gated:
            wide = body.apply(self.activation, up, stem="a")
        else:
            gate = self._biased(body, body.weighted(h, ("E",), ("F",), "gate"), "inner", "F")
            if not self._odd(3):
                gate = body.apply(self.activation, gate, stem="a")
            if self._odd(3):
                up = body.apply(self.activation, up, stem="a")
            args = (gate, up) if self.draw.chance(70) else (up, gate)
            wide = body.apply(Binary("*"), *args, stem="p")
        down = body.weighted(wide, ("F",), ("E",), "down")
        return self._biased(body, down, "outer", "E")

    def _table(self, top: Builder, *dims: str) -> str:
        """The table of the vocabulary with its dims in this order."""
        stored = top.params[0].name
        if top.dims(stored) == dims:
            return stored
        return top.apply(Transpose(), stored, stem="turned", inline=90)

    def _head(self, top: Builder, x: str) -> str:
        if not self._odd(20):
            x = self._norm(top, x, "E")
        if self.draw.chance(40):
            logits = top.apply(Product(("E",)), x, self._table(top, "E", "V"), stem="logits")
        else:
            turned = self.draw.of(["", "", "transposed"])
            logits = top.weighted(x, ("E",), ("V",), "head", turned)
        return self._multiplied(top, logits, "logits")
