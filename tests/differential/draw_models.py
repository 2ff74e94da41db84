"""Random models with caches: attention of all kinds, in layers, from tokens or from rows."""

from __future__ import annotations

from random import Random

from bounded import Arithmetic
from building import Builder, Drawing, rope
from drawn_programs import Carried, Program, Repeat, Tensor, used_only
from operations import (
    Activation,
    Append,
    Binary,
    Embed,
    Product,
    RmsNorm,
    Scale,
    Softmax,
    Transpose,
)


def cached_model(random: Random, kinds: Arithmetic, tokens: bool, largest: int = 12) -> Program:
    """A decoder. With ``tokens`` it maps ids to logits, else rows to rows (and maybe more)."""
    return _Model(Drawing(random), largest).program(kinds, tokens)


class _Model:
    """Draws one model; what all its layers have in common is drawn once."""

    def __init__(self, draw: Drawing, largest: int) -> None:
        self.draw = draw
        groups = draw.weighted({1: 30, 2: 40, 3: 20, 4: 10})
        self.extents = {
            "E": draw.number(2, largest),
            "H": groups * draw.weighted({1: 40, 2: 40, 3: 20}),
            "G": groups,
            "D": 2 * draw.number(1, 4),
            "F": draw.number(1, largest + 4),
        }
        self.own_heads = self.extents["H"] == groups and draw.chance(60)
        self.turn = rope(draw) if draw.chance(75) else None
        self.norm_eps = draw.of([None, 1e-6, 1e-3])
        self.pre_norm, self.post_norm = draw.chance(85), draw.chance(12)
        self.head_norm = draw.chance(12)
        self.biases = draw.chance(20)
        self.residual = draw.chance(92)
        self.parallel = draw.chance(12)
        self.mlp = draw.weighted({"gated": 55, "plain": 20, "none": 25})
        self.scaled = draw.weighted({"root": 75, "factor": 15, "none": 10})
        self.values_first = draw.chance(20)
        self.activation = Activation(*draw.of([("silu", ""), ("gelu", ""), ("gelu", "tanh")]))
        self.batch = ("B",) if draw.chance(80) else ()

    def program(self, kinds: Arithmetic, tokens: bool) -> Program:
        """Embedding or input, layers, head."""
        draw = self.draw
        top = Builder(draw, self.extents)
        inputs: tuple[Tensor, ...] = ()
        if tokens:
            self.batch = ("B",)
            self.extents["V"] = draw.number(2, 24)
            table = top.param("table", "V", "E")
            x = top.apply(Embed("tokens"), table, stem="x", inline=20)
        else:
            x = "x"
            inputs = (Tensor("x", (*self.batch, "L", "E")),)
            top.known[top.fresh("x")] = inputs[0].dims
        if draw.chance(15):
            x = top.apply(Scale("{} * 1.5", 1.5), x, stem="x")
        if draw.chance(10):
            x = self._norm(top, x, "E")
        start = x
        for _ in range(draw.weighted({1: 80, 2: 20})):
            x = self._layers(top, x)
        early = x if draw.chance(60) else ""
        if draw.chance(8):
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
            shared=None if self.own_heads else ("H", "G"),
            flags=("on",),
        )
        return used_only(program)

    def _layers(self, top: Builder, x: str) -> str:
        """A layer of its own, or a repeat of layers."""
        if self.draw.chance(20):
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
        h = self._norm(body, x, "E") if self.pre_norm else x
        attended = self._attention(body, h, cache)
        if self.parallel and self.mlp != "none":
            both = body.apply(Binary("+"), attended, self._mlp(body, h), stem="o")
            return self._joined(body, x, both)
        x = self._joined(body, x, attended)
        if self.mlp == "none":
            return x
        h = self._norm(body, x, "E") if self.pre_norm else x
        return self._joined(body, x, self._mlp(body, h))

    def _joined(self, body: Builder, x: str, change: str) -> str:
        if self.post_norm:
            change = self._norm(body, change, "E")
        if not self.residual:
            return change
        args = (x, change) if self.draw.chance(70) else (change, x)
        return body.apply(Binary("+"), *args, stem="x", inline=30)

    def _attention(self, body: Builder, h: str, cache: str) -> str:
        """Projections, rotation, caches, scores, weighted values, output."""
        heads = "H" if self.own_heads else "G"
        if self.values_first:
            v = self._projected(body, h, heads, "v")
        q = self._projected(body, h, "H", "q")
        k = self._projected(body, h, heads, "k")
        if not self.values_first:
            v = self._projected(body, h, heads, "v")
        if self.head_norm:
            q, k = self._norm(body, q, "D"), self._norm(body, k, "D")
        if self.turn is not None:
            q, k = (body.apply(self.turn, name, stem="r") for name in (q, k))
        early = self.draw.chance(15)
        if early:
            q = self._scores_scaled(body, q)
        keys = body.apply(Append(f"{cache}k"), k, stem="keys")
        values = body.apply(Append(f"{cache}v"), v, stem="values")
        shared = None if self.own_heads else ("H", "G")
        turned = Transpose(None if self.draw.chance(70) else ("S", "D"))
        kt = body.apply(turned, keys, stem="kt", inline=85)
        s = body.apply(Product(("D",), shared), q, kt, stem="s")
        if not early:
            s = self._scores_scaled(body, s)
        p = body.apply(Softmax("", True), s, stem="p", inline=60)
        o = body.apply(Product(("S",), shared), p, values, stem="o")
        out = body.weighted(o, ("H", "D"), ("E",), "wo")
        return self._biased(body, out, "E")

    def _scores_scaled(self, body: Builder, value: str) -> str:
        if self.scaled == "none":
            return value
        if self.scaled == "root":
            return body.apply(Scale("{} / sqrt(D)", 1.0, "D"), value, stem="s")
        return body.apply(Scale("0.3 * {}", 0.3), value, stem="s")

    def _projected(self, body: Builder, h: str, heads: str, stem: str) -> str:
        found = body.weighted(h, ("E",), (heads, "D"), f"w{stem}")
        if self.biases:
            return body.apply(Binary("+"), found, body.param(f"b{stem}", heads, "D"), stem=stem)
        return found

    def _biased(self, body: Builder, value: str, dim: str) -> str:
        if not self.biases:
            return value
        return body.apply(Binary("+"), value, body.param("b", dim), stem="s")

    def _norm(self, body: Builder, x: str, dim: str) -> str:
        return body.apply(RmsNorm(self.norm_eps), x, body.param("g", dim), stem="h", inline=30)

    def _mlp(self, body: Builder, h: str) -> str:
        up = self._biased(body, body.weighted(h, ("E",), ("F",), "up"), "F")
        if self.mlp == "plain":
            wide = body.apply(self.activation, up, stem="a")
        else:
            gate = self._biased(body, body.weighted(h, ("E",), ("F",), "gate"), "F")
            gate = body.apply(self.activation, gate, stem="a")
            args = (gate, up) if self.draw.chance(70) else (up, gate)
            wide = body.apply(Binary("*"), *args, stem="p")
        return self._biased(body, body.weighted(wide, ("F",), ("E",), "down"), "E")

    def _head(self, top: Builder, x: str) -> str:
        if self.draw.chance(80):
            x = self._norm(top, x, "E")
        if self.draw.chance(40):
            turned = top.apply(Transpose(), top.params[0].name, stem="tied", inline=90)
            return top.apply(Product(("E",)), x, turned, stem="logits")
        return top.weighted(x, ("E",), ("V",), "head", self.draw.of(["", "", "transposed"]))
