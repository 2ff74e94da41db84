"""The operations of the language: how each one is written, and what it means.

Written from ``docs/language.md`` alone. ``text`` gives a fragment of source, ``dims`` the dims of
the result, ``apply`` the result for bounded tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from bounded import Bounded, Rules, exact

Dims = tuple[str, ...]
SUM, PRODUCT, ATOM = 1, 2, 3
"""How strongly a fragment of text binds."""


@dataclass(frozen=True)
class Fragment:
    """Source text of an expression; ``binds`` says where it needs brackets."""

    text: str
    binds: int = ATOM

    def within(self, binds: int) -> str:
        """The text as an operand of an operator that binds as strongly as ``binds``."""
        return self.text if self.binds >= binds else f"({self.text})"


@dataclass
class Scope:
    """What a step knows: the rules of arithmetic, cached tokens, caches, whose rows may be
    ``coded`` as floats of eight bits, the layer it is in."""

    rules: Rules
    extents: Mapping[str, int] = field(default_factory=dict)
    position: int = 0
    capacity: int = 0
    caches: dict[tuple[str, int], Bounded] = field(default_factory=dict)
    layer: int = 0
    ids: dict[str, np.ndarray] = field(default_factory=dict)
    coded: bool = False


class Operation(Protocol):
    """What a statement of a program computes from its operands."""

    name: str

    def text(self, args: Sequence[Fragment]) -> Fragment:
        """The expression in source form."""

    def dims(self, args: Sequence[Dims]) -> Dims:
        """Dims of the result."""

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        """The result."""


def _call(name: str, *parts: str) -> Fragment:
    return Fragment(f"{name}({', '.join(parts)})")


@dataclass(frozen=True)
class Binary:
    """``+``, ``-`` or ``*`` of two tensors; the smaller is repeated."""

    sign: str

    @property
    def name(self) -> str:
        return {"+": "add", "-": "subtract", "*": "multiply"}[self.sign]

    def text(self, args: Sequence[Fragment]) -> Fragment:
        binds = PRODUCT if self.sign == "*" else SUM
        left, right = args[0].within(binds), args[1].within(binds + 1)
        return Fragment(f"{left} {self.sign} {right}", binds)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return max(args, key=len)

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        return getattr(scope.rules, self.name)(*args)


@dataclass(frozen=True)
class Scale:
    """A tensor times a constant, as ``pattern`` writes it; divided by the root of the extent of
    ``root``, if there is one."""

    pattern: str
    factor: float
    root: str = ""
    name = "scale"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        if self.pattern.startswith("-"):
            return Fragment(self.pattern.format(args[0].within(ATOM)), PRODUCT)
        place = PRODUCT if self.pattern.startswith("{}") else ATOM
        return Fragment(self.pattern.format(args[0].within(place)), PRODUCT)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        below = scope.extents[self.root] ** 0.5 if self.root else 1.0
        return scope.rules.scale(args[0], self.factor / below)


@dataclass(frozen=True)
class Activation:
    """``silu``, ``relu2``, ``tanh``, ``sigmoid``, ``quick_gelu``, or ``gelu`` with its ``form``; an
    empty form leaves the option out."""

    function: str
    form: str = ""

    @property
    def name(self) -> str:
        return f"gelu {self.form or 'erf'}" if self.function == "gelu" else self.function

    def text(self, args: Sequence[Fragment]) -> Fragment:
        option = [f"form = {self.form}"] if self.form else []
        return _call(self.function, args[0].text, *option)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        if self.function == "silu":
            return scope.rules.silu(args[0])
        if self.function == "relu2":
            return scope.rules.relu2(args[0])
        if self.function == "quick_gelu":
            return scope.rules.quick_gelu(args[0])
        if self.function == "tanh":
            return scope.rules.tanh(args[0])
        if self.function == "sigmoid":
            return scope.rules.sigmoid(args[0])
        return scope.rules.gelu(args[0], self.form or "erf")


@dataclass(frozen=True)
class RmsNorm:
    """``rms_norm(x, gain, eps)``; None leaves eps at its default."""

    eps: float | None = None
    name = "rms_norm"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        option = [] if self.eps is None else [f"eps = {self.eps}"]
        return _call("rms_norm", args[0].text, args[1].text, *option)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        return scope.rules.rms_norm(args[0], args[1], 1e-5 if self.eps is None else self.eps)


@dataclass(frozen=True)
class LayerNorm:
    """``layer_norm(x, gain, bias, eps)``; the bias may be left out."""

    eps: float | None = None
    name = "layer_norm"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        option = [] if self.eps is None else [f"eps = {self.eps}"]
        return _call("layer_norm", *(arg.text for arg in args), *option)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        x, gain, *bias = args
        centred = scope.rules.centre(x, gain.dims[0])
        found = scope.rules.rms_norm(centred, gain, 1e-5 if self.eps is None else self.eps)
        return scope.rules.add(found, bias[0]) if bias else found


@dataclass(frozen=True)
class Softmax:
    """``softmax(x, mask, dim, window)``; an empty dim is the last one. Row l of L sees up to
    pos + l, with a ``window`` the last so many of these alone."""

    dim: str = ""
    causal: bool = False
    window: int = 0

    @property
    def name(self) -> str:
        return "softmax" + " causal" * self.causal + " windowed" * (self.window > 0)

    def text(self, args: Sequence[Fragment]) -> Fragment:
        options = ["mask = causal"] if self.causal else []
        options += [f"window = {self.window}"] if self.window else []
        options += [f"dim = {self.dim}"] if self.dim else []
        return _call("softmax", args[0].text, *options)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        (x,) = args
        dim = self.dim or x.dims[-1]
        hidden = None
        if self.causal:
            rows, keys = np.arange(x.extent("L")), np.arange(x.extent(dim))
            beyond = keys[None, :] > scope.position + rows[:, None]
            if self.window:
                beyond |= keys[None, :] <= scope.position + rows[:, None] - self.window
            mask = exact(("L", dim), beyond)
            hidden = mask.spread(x.dims)[0].astype(bool)
        return scope.rules.softmax(x, dim, hidden)


@dataclass(frozen=True)
class TopK:
    """``top_k`` of scores, maybe with a bias, over the last dim; ``groups`` are how many there are,
    how many are kept, and how many of one count."""

    count: int
    normalise: bool = False
    groups: tuple[int, int, int] = (1, 1, 1)

    @property
    def name(self) -> str:
        words = ["top_k", "normalised" * self.normalise, "of groups" * (self.groups[0] > 1)]
        return " ".join(word for word in words if word)

    def text(self, args: Sequence[Fragment]) -> Fragment:
        options = [f"bias = {args[1].text}"] if len(args) > 1 else []
        names = ("groups", "kept_groups", "group_top")
        if self.groups[0] > 1:
            options += [f"{n} = {v}" for n, v in zip(names, self.groups, strict=True)]
        options += ["normalise = true"] if self.normalise else []
        return _call("top_k", args[0].text, str(self.count), *options)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        bias = args[1] if len(args) > 1 else None
        gates, unsure = scope.rules.top_k(args[0], bias, self.count, *self.groups)
        return scope.rules.shares(gates, unsure) if self.normalise else gates


@dataclass(frozen=True)
class Rope:
    """``rope`` of the last dim, with the options that are not at their defaults."""

    theta: float = 10000.0
    style: str = "half"
    scaling: str = "none"
    options: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        part = " of a part" if "rotated" in dict(self.options) else ""
        return f"rope {self.style} {self.scaling}{part}"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        words = [str(self.theta)] if self.theta != 10000.0 else []
        words += [f"style = {self.style}"] if self.style != "half" else []
        words += [f"scaling = {self.scaling}"] if self.scaling != "none" else []
        words += [f"{name} = {value}" for name, value in self.options]
        return _call("rope", args[0].text, *words)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return args[0]

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        (x,) = args
        dim = x.dims[-1]
        positions = scope.position + np.arange(x.extent("L"))
        lanes = x.extent(dim)
        angle = exact(("L", dim), np.outer(positions, self.frequencies(lanes)))
        turning = int(dict(self.options).get("rotated", lanes))
        if self.style == "interleaved" or turning == lanes:
            return scope.rules.rotate(x, dim, angle, self.style)
        # With the other lanes in the middle and at the end, lanes that are half of all apart turn.
        half, rest = turning // 2, (lanes - turning) // 2
        order = [*range(half), *range(turning, turning + rest), *range(half, turning)]
        order += range(turning + rest, lanes)
        turned = scope.rules.rotate(_ordered(x, order), dim, angle, self.style)
        return _ordered(turned, np.argsort(order))

    def frequencies(self, lanes: int) -> np.ndarray:
        """Radians per position of each pair of lanes."""
        turning = int(dict(self.options).get("rotated", lanes))
        found = np.zeros(lanes // 2)
        found[: turning // 2] = [self._scaled(n, turning) for n in range(turning // 2)]
        return found

    def _scaled(self, pair: int, lanes: int) -> float:
        plain = self.theta ** (-2.0 * pair / lanes)
        known = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        known |= {"original_max_position": 8192} | dict(self.options)
        slow, factor = plain / known["factor"], known["factor"]
        low, high = known["low_freq_factor"], known["high_freq_factor"]
        length = known["original_max_position"]
        if self.scaling == "linear":
            return slow
        if self.scaling == "llama3":
            wave = 2 * math.pi / plain
            if wave < length / high:
                return plain
            if wave > length / low:
                return slow
            smooth = (length / wave - low) / (high - low)
            return (1 - smooth) * plain / factor + smooth * plain
        if self.scaling == "yarn":

            def lane(turns: float) -> float:
                return lanes * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

            first, last = max(math.floor(lane(high)), 0), min(math.ceil(lane(low)), lanes - 1)
            ramp = (pair - first) / ((last - first) or 0.001)
            ramp = min(max(ramp, 0.0), 1.0)
            return slow * ramp + plain * (1 - ramp)
        return plain


def _ordered(x: Bounded, order: Sequence[int] | np.ndarray) -> Bounded:
    """``x`` with the lanes of its last dim in another order."""
    return Bounded(x.dims, x.value[..., order], x.error[..., order])


@dataclass(frozen=True)
class Transpose:
    """``transpose(x)`` or ``transpose(x, first, second)``."""

    pair: tuple[str, str] | None = None
    name = "transpose"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        return _call("transpose", args[0].text, *(self.pair or ()))

    def dims(self, args: Sequence[Dims]) -> Dims:
        inner = [d for n, d in enumerate(args[0]) if n or d != "B"]
        first, second = self.pair or (inner[0], inner[-1])
        other = {first: second, second: first}
        return tuple(other.get(d, d) for d in args[0])

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        return args[0].ordered(self.dims([args[0].dims]))


@dataclass(frozen=True)
class Product:
    """``a @ b`` that sums over ``summed``. ``shared`` is (H, G) where heads share."""

    summed: Dims
    shared: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return f"product over {len(self.summed)}" + (" of shared heads" if self.shared else "")

    def text(self, args: Sequence[Fragment]) -> Fragment:
        return Fragment(f"{args[0].within(PRODUCT)} @ {args[1].within(ATOM)}", PRODUCT)

    def dims(self, args: Sequence[Dims]) -> Dims:
        gone = set(self.summed) | ({self.shared[1]} if self.shared else set())
        return tuple(d for d in dict.fromkeys((*args[0], *args[1])) if d not in gone)

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        left, right = args
        if self.shared:
            many, few = self.shared
            times, left_over = divmod(left.extent(many), right.extent(few))
            if left_over:
                raise ValueError(f"{many} is no multiple of {few}")
            right = scope.rules.repeat_heads(right, few, many, times)
        return scope.rules.contract(left, right, self.summed)


def coded_rows(values: np.ndarray) -> np.ndarray:
    """What floats of eight bits (e4m3) keep of rows along the last axis, each with the least power
    of two from 2^-15 on with which no lane is beyond 448: see docs/cuda.md."""
    most = np.maximum(np.abs(values).max(-1, keepdims=True), 2.0**-100)
    scale = 2.0 ** np.maximum(np.ceil(np.log2(most / 448)), -15)
    sizes = np.maximum(np.abs(values / scale), 2.0**-6)
    step = scale * 2.0 ** (np.floor(np.log2(sizes)) - 3)
    return np.round(values / step) * step


@dataclass(frozen=True)
class Append:
    """``append(cache.name, value)``: the cache with the rows behind those it has."""

    cache: str
    name = "append"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        return _call("append", f"cache.{self.cache}", args[0].text)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return tuple("S" if d == "L" else d for d in args[0])

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        (new,) = args
        if scope.coded:
            new = Bounded(new.dims, coded_rows(new.value), new.error)
        axis, key = new.dims.index("L"), (self.cache, scope.layer)
        shape = tuple(scope.capacity if n == axis else m for n, m in enumerate(new.value.shape))
        old = scope.caches.get(key)
        value, error = (
            (old.value.copy(), old.error.copy()) if old else (np.zeros(shape), np.zeros(shape))
        )
        where = (slice(None),) * axis + (slice(scope.position, scope.position + new.extent("L")),)
        value[where], error[where] = new.value, new.error
        scope.caches[key] = Bounded(self.dims([new.dims]), value, error)
        return scope.caches[key]


@dataclass(frozen=True)
class Embed:
    """``embed(tokens, table)``: rows of the table, which are given."""

    tokens: str
    name = "embed"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        return _call("embed", self.tokens, args[0].text)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return ("B", "L", args[0][1])

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        ids = scope.ids[self.tokens].reshape(1, -1)
        return Bounded(self.dims([args[0].dims]), args[0].value[ids], args[0].error[ids])
