"""Float64 tensors with named dims that carry a bound of the error a correct program may have.

Every operation gives the exact value (as far as float64 goes) and, element by element, the largest
error that rounding explains: errors of its operands carried through by their first and second
order terms, plus the rounding of its own sums and of storing its result (running error analysis,
Higham, Accuracy and Stability of Numerical Algorithms, section 3.3). So a result that lies outside
of the bound is wrong, however many operations lie in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff by type."""
_LEAST = {"f32": 2.0**-126, "f16": 2.0**-24, "bf16": 2.0**-126}
"""What may be lost near zero: results below it may become zero."""
_OWN = 8
"""Roundings inside one elementwise formula, such as those of an exponential and a division."""
_ERF = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Arithmetic:
    """The types that a program computes with: of stored values, of sums, and of the steps inside a
    formula such as that of a norm, whose result alone is stored."""

    stored: str = "f32"
    sums: str = "f32"
    inner: str = "f32"

    @property
    def unit(self) -> float:
        """Relative error of storing a value."""
        return UNIT[self.stored]

    @property
    def sum_unit(self) -> float:
        """Relative error of one addition of a sum."""
        return UNIT[self.sums]

    @property
    def inner_unit(self) -> float:
        """Relative error of a step inside a formula."""
        return UNIT[self.inner]

    @property
    def least(self) -> float:
        """Absolute error of storing a value near zero."""
        return max(_LEAST[self.stored], _LEAST[self.sums])


@dataclass(frozen=True)
class Bounded:
    """``value`` and ``error`` are float64 arrays with one axis for each of ``dims``."""

    dims: tuple[str, ...]
    value: np.ndarray
    error: np.ndarray

    def extent(self, dim: str) -> int:
        """How many elements ``dim`` has."""
        return self.value.shape[self.dims.index(dim)]

    def ordered(self, dims: Sequence[str]) -> Bounded:
        """The same elements with the dims in another order."""
        axes = [self.dims.index(d) for d in dims]
        return Bounded(tuple(dims), self.value.transpose(axes), self.error.transpose(axes))

    def renamed(self, names: Mapping[str, str]) -> Bounded:
        """The same elements, dims called otherwise."""
        return Bounded(tuple(names.get(d, d) for d in self.dims), self.value, self.error)

    def at(self, axis: int, index: int | slice) -> Bounded:
        """A slice; an ``int`` takes the dim away."""
        where = (slice(None),) * axis + (index,)
        left = self.dims[:axis] + self.dims[axis + 1 :] if isinstance(index, int) else self.dims
        return Bounded(left, self.value[where], self.error[where])

    def spread(self, dims: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Value and error with an axis for each of ``dims``, of extent 1 where there is none."""
        mine = self.ordered([d for d in dims if d in self.dims])
        shape = [mine.extent(d) if d in mine.dims else 1 for d in dims]
        return mine.value.reshape(shape), mine.error.reshape(shape)


def exact(dims: Sequence[str], values: np.ndarray) -> Bounded:
    """Given values: those that the program is given too, so nothing is lost."""
    array = np.asarray(values, np.float64)
    return Bounded(tuple(dims), array, np.zeros_like(array))


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """``values`` as numbers of type ``kind``, in float32 (which holds all of them)."""
    if kind == "f16":
        return values.astype(np.float16).astype(np.float32)
    plain = np.ascontiguousarray(values, np.float32)
    if kind == "f32":
        return plain
    bits = plain.view(np.uint32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return kept.view(np.float32)


class Rules:
    """What each operation of the language does to bounded tensors, computed as ``kinds`` says.

    ``merges`` counts how often a softmax of some elements is merged with one of others: each time
    numerator and denominator are rounded three times more."""

    def __init__(self, kinds: Arithmetic) -> None:
        self.kinds = kinds
        self.merges = 0
        self.largest = 0.0

    def _seen(self, *values: np.ndarray) -> None:
        """Note how large values get that the program must hold."""
        sizes = [float(np.abs(v).max()) for v in values if v.size]
        self.largest = max(self.largest, *sizes, 0.0) if not np.isnan(sizes).any() else np.inf

    def _stored(self, dims: Sequence[str], value: np.ndarray, error: np.ndarray) -> Bounded:
        kinds = self.kinds
        self._seen(value)
        error = error + kinds.unit * (np.abs(value) + error) + kinds.least
        return Bounded(tuple(dims), value, np.broadcast_to(error, value.shape))

    def add(self, a: Bounded, b: Bounded) -> Bounded:
        """Sum; the smaller is repeated over dims it lacks."""
        dims = a.dims if len(a.dims) >= len(b.dims) else b.dims
        (x, ex), (y, ey) = a.spread(dims), b.spread(dims)
        return self._stored(dims, x + y, ex + ey)

    def subtract(self, a: Bounded, b: Bounded) -> Bounded:
        """Difference; the smaller is repeated over dims it lacks."""
        return self.add(a, Bounded(b.dims, -b.value, b.error))

    def multiply(self, a: Bounded, b: Bounded) -> Bounded:
        """Product by element; the smaller is repeated over dims it lacks."""
        dims = a.dims if len(a.dims) >= len(b.dims) else b.dims
        (x, ex), (y, ey) = a.spread(dims), b.spread(dims)
        return self._stored(dims, x * y, np.abs(x) * ey + ex * np.abs(y) + ex * ey)

    def scale(self, a: Bounded, factor: float) -> Bounded:
        """Product with a constant, which may be folded into a weight and stored with it."""
        error = np.abs(factor) * a.error + self.kinds.unit * np.abs(a.value * factor)
        return self._stored(a.dims, a.value * factor, error)

    def contract(self, a: Bounded, b: Bounded, summed: Sequence[str]) -> Bounded:
        """The product that sums over ``summed``; other dims of both sides are batch dims."""
        dims, spec = _contraction(a, b, summed)
        sizes = np.abs(a.value) + a.error, np.abs(b.value) + b.error
        count = math.prod(a.extent(d) for d in summed)
        whole = np.einsum(spec, *sizes)
        self._seen(whole)
        error = (count + 2) * self.kinds.sum_unit * whole + count * self.kinds.least
        # Weights and what a program is given are exact.
        if a.error.any():
            error += np.einsum(spec, a.error, sizes[1])
        if b.error.any():
            error += np.einsum(spec, np.abs(a.value), b.error)
        return self._stored(dims, np.einsum(spec, a.value, b.value), error)

    def repeat_heads(self, a: Bounded, few: str, many: str, times: int) -> Bounded:
        """Each element of dim ``few`` ``times`` times in a row, the dim now called ``many``."""
        axis = a.dims.index(few)
        dims = tuple(many if d == few else d for d in a.dims)
        return Bounded(dims, np.repeat(a.value, times, axis), np.repeat(a.error, times, axis))

    def silu(self, a: Bounded) -> Bounded:
        """x / (1 + exp(-x)), whose slope is below 1.1."""
        with np.errstate(over="ignore"):
            value = a.value / (1 + np.exp(-a.value))
        return self._formula(a, value, 1.1 * a.error)

    def gelu(self, a: Bounded, form: str) -> Bounded:
        """GELU by ``erf`` or ``tanh``, whose slope is below 1.13."""
        x = a.value
        if form == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            inner = _ERF(x / math.sqrt(2))
        return self._formula(a, 0.5 * x * (1 + inner), 1.13 * a.error)

    def quick_gelu(self, a: Bounded) -> Bounded:
        """x / (1 + exp(-1.702 x)), whose slope is at most 1.1."""
        with np.errstate(over="ignore"):
            return self._formula(a, a.value / (1 + np.exp(-1.702 * a.value)), 1.1 * a.error)

    def relu2(self, a: Bounded) -> Bounded:
        """The square of what is above zero, whose slope there is twice that."""
        above = np.maximum(a.value, 0.0)
        return self._formula(a, above * above, (2 * above + a.error) * a.error)

    def tanh(self, a: Bounded) -> Bounded:
        """The hyperbolic tangent, whose slope is at most 1."""
        return self._formula(a, np.tanh(a.value), a.error)

    def sigmoid(self, a: Bounded) -> Bounded:
        """1 / (1 + exp(-x)), whose slope is at most a quarter."""
        with np.errstate(over="ignore"):
            value = 1 / (1 + np.exp(-a.value))
        own = _OWN * self.kinds.inner_unit * np.ones_like(value)
        return self._stored(a.dims, value, 0.25 * a.error + own)

    def top_k(
        self, a: Bounded, bias: Bounded | None, count: int, groups: int, kept: int, best: int
    ) -> tuple[Bounded, np.ndarray]:
        """The ``count`` largest of the last dim, by score plus bias, from the ``kept`` groups with
        the largest sums of their ``best`` largest; 0 for the others. Also where rounding may change
        the choice: there a gate may be anything up to its score."""
        score, error = a.value, a.error
        if bias is not None:
            added, off = bias.spread(a.dims)
            score, error = score + added, error + off
        error = error + 2 * self.kinds.inner_unit * np.abs(score)
        runs = (*score.shape[:-1], groups, score.shape[-1] // groups)
        by_group, slack = score.reshape(runs), error.reshape(runs)
        sums = -np.sort(-by_group, -1)[..., :best].sum(-1)
        chosen, open_groups = _largest(sums, best * slack.max(-1), kept)
        held = np.broadcast_to(chosen[..., None], runs).reshape(score.shape)
        taken, unsure = _largest(np.where(held, score, -np.inf), error, count)
        unsure = np.broadcast_to(unsure | open_groups, score.shape)
        value = np.where(taken, a.value, 0.0)
        bound = np.where(unsure, np.abs(a.value) + a.error, np.where(taken, a.error, 0.0))
        return self._stored(a.dims, value, bound), unsure

    def shares(self, gates: Bounded, unsure: np.ndarray) -> Bounded:
        """Gates, none below zero, divided by their sums over the last dim."""
        total = gates.value.sum(-1, keepdims=True) + 1e-20
        off = gates.error.sum(-1, keepdims=True) + 64 * self.kinds.inner_unit * total
        value = gates.value / total
        part = np.minimum(off / total, 0.5)
        error = (gates.error / total + value * part) / (1 - part)
        return self._stored(gates.dims, value, np.where(unsure | (off > 0.5 * total), 1.0, error))

    def _formula(self, a: Bounded, value: np.ndarray, error: np.ndarray) -> Bounded:
        """An activation: its formula rounds several numbers as large as its argument."""
        own = _OWN * self.kinds.inner_unit * np.minimum(np.abs(a.value), 1 + np.abs(value))
        return self._stored(a.dims, value, error + own)

    def rms_norm(self, a: Bounded, gain: Bounded, eps: float) -> Bounded:
        """x / sqrt(mean(x x) + eps) * gain over the gain's only dim."""
        axis = a.dims.index(gain.dims[0])
        x, error, count = a.value, a.error, a.value.shape[axis]
        mean = (x * x).mean(axis, keepdims=True) + eps
        self._seen(mean * count)
        moved = (2 * np.abs(x) * error + error * error).mean(axis, keepdims=True) + (
            (count + 3) * self.kinds.sum_unit * mean + self.kinds.least
        )
        part = np.minimum(moved / mean, 0.999)
        inverse = 1 / np.sqrt(mean)
        slack = (1 / np.sqrt(1 - part) - 1) + 4 * self.kinds.sum_unit
        g, _ = gain.spread(a.dims)
        value = x * inverse * g
        spread = np.abs(g) * inverse * (1 + slack) * error + np.abs(value) * slack
        return self._stored(a.dims, value, spread + 4 * self.kinds.inner_unit * np.abs(value))

    def centre(self, a: Bounded, dim: str) -> Bounded:
        """x - mean(x) over ``dim``."""
        axis = a.dims.index(dim)
        count = a.value.shape[axis]
        mean = a.value.mean(axis, keepdims=True)
        size = np.abs(a.value).mean(axis, keepdims=True)
        self._seen(size * count)
        moved = a.error.mean(axis, keepdims=True) + (count + 3) * self.kinds.sum_unit * size
        return self._stored(a.dims, a.value - mean, a.error + moved + self.kinds.least)

    def softmax(self, a: Bounded, dim: str, hidden: np.ndarray | None = None) -> Bounded:
        """Over ``dim``; elements where ``hidden`` (broadcast) holds take no part."""
        axis = a.dims.index(dim)
        x = a.value if hidden is None else np.where(hidden, -np.inf, a.value)
        top = x.max(axis, keepdims=True)
        seen = np.isfinite(x)
        weights = np.exp(x - top)
        value = weights / weights.sum(axis, keepdims=True)
        apart = np.where(seen, a.error, 0.0)
        below = np.where(seen, top - np.where(seen, x, top), 0.0)
        rounds = self.kinds.unit + 3 * self.kinds.inner_unit * (below + 2)
        one = apart + apart.max(axis, keepdims=True) + rounds
        over = (value * one).sum(axis, keepdims=True)
        sums = (x.shape[axis] + 2) * (self.kinds.sum_unit + self.kinds.least)
        sums += 6 * self.merges * (self.kinds.sum_unit + self.kinds.least)
        error = np.expm1(np.minimum(one + over + sums, 30.0)) * value
        return self._stored(a.dims, value, np.where(seen, error, 0.0))

    def rotate(self, a: Bounded, dim: str, angle: Bounded, style: str) -> Bounded:
        """Pairs of lanes of ``dim`` turned; ``angle`` [rows, pair] is exact."""
        axis = a.dims.index(dim)
        x, error = np.moveaxis(a.value, axis, -1), np.moveaxis(a.error, axis, -1)
        others = [d for d in a.dims if d != dim]
        turn, _ = angle.spread([*others, angle.dims[-1]])
        cos, sin = np.cos(turn), np.sin(turn)
        half = x.shape[-1] // 2
        first, second = (
            (slice(0, half), slice(half, None))
            if style == "half"
            else (slice(0, None, 2), slice(1, None, 2))
        )
        value, bound = np.empty_like(x), np.empty_like(x)
        left, right = x[..., first], x[..., second]
        value[..., first] = left * cos - right * sin
        value[..., second] = left * sin + right * cos
        size = np.abs(left) + np.abs(right) + error[..., first] + error[..., second]
        own = (4 * self.kinds.inner_unit + 8 * UNIT["f32"] * np.abs(turn)) * size
        bound[..., first] = error[..., first] * np.abs(cos) + error[..., second] * np.abs(sin) + own
        bound[..., second] = (
            error[..., first] * np.abs(sin) + error[..., second] * np.abs(cos) + own
        )
        return self._stored(a.dims, np.moveaxis(value, -1, axis), np.moveaxis(bound, -1, axis))


def _contraction(a: Bounded, b: Bounded, summed: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The dims of a product that sums over ``summed``, and what ``np.einsum`` is asked for it."""
    every = tuple(dict.fromkeys((*a.dims, *b.dims)))
    letters = {d: chr(ord("a") + n) for n, d in enumerate(every)}
    dims = tuple(d for d in every if d not in summed)
    left, right, result = ("".join(letters[d] for d in x) for x in (a.dims, b.dims, dims))
    return dims, f"{left},{right}->{result}"


def _largest(values: np.ndarray, errors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which are the ``count`` largest of the last dim, of equal ones the first; and, with a last
    dim of 1, whether errors could make another one of them."""
    if count == values.shape[-1]:
        return np.ones(values.shape, bool), np.zeros((*values.shape[:-1], 1), bool)
    order = np.argsort(-values, -1, kind="stable")
    taken = np.zeros(values.shape, bool)
    np.put_along_axis(taken, order[..., :count], True, -1)
    lowest = np.where(taken, values - errors, np.inf).min(-1, keepdims=True)
    highest = np.where(taken, -np.inf, values + errors).max(-1, keepdims=True)
    return taken, lowest <= highest


class Plain(Rules):
    """The same values without their errors, for programs that are judged in another way."""

    def _stored(self, dims: Sequence[str], value: np.ndarray, error: np.ndarray) -> Bounded:
        self._seen(value)
        return Bounded(tuple(dims), value, np.zeros_like(value))

    def contract(self, a: Bounded, b: Bounded, summed: Sequence[str]) -> Bounded:
        dims, spec = _contraction(a, b, summed)
        self._seen(np.einsum(spec, np.abs(a.value), np.abs(b.value)))
        return self._stored(dims, np.einsum(spec, a.value, b.value), a.error)


class Rounding(Plain):
    """The values that a program gets which rounds what it multiplies to its type, as where keys and
    values are cached and tensor cores compute. Weights are of the type already."""

    def contract(self, a: Bounded, b: Bounded, summed: Sequence[str]) -> Bounded:
        return super().contract(self._rounded(a), self._rounded(b), summed)

    def _rounded(self, x: Bounded) -> Bounded:
        return replace(x, value=rounded(x.value, self.kinds.stored).astype(np.float64))


class Storing(Rounding):
    """The values that a program gets which stores what every operation gives in its type, as cores
    do."""

    def _stored(self, dims: Sequence[str], value: np.ndarray, error: np.ndarray) -> Bounded:
        return self._rounded(super()._stored(dims, value, error))
