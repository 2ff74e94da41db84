"""Exponentials, SiLU and GELU with 16-bit results by vector operations in f32.

Operands have 16 bits or are f32: the former are converted by the first operations, and the result
is rounded once, by the last. All rest on f(x) = p(x)^32, where p is a polynomial that is near to
f(x / 32) for the exponential, and to the 32nd root for what the error function leaves below zero.
An exponential is right to 2.1e-5 of the result between -20.5 and 11.2, a twentieth of what f16
resolves. What is below is taken for -20.5, of which f16 makes a zero; what is above grows on, and
f16 makes an infinity of both.

Exponentials and SiLU also go in f16 alone, of which a cycle takes four elements where it takes one
product of f32: exp(x) is the square of exp(x / 2), whose whole powers of two are added to the
exponent of a polynomial of the rest. An exponential of a difference of two f16, rounded to one, is
off by at most 3 units of what f16 resolves, 0.6 in the mean; SiLU of one by at most 5, or 1e-6.

The numbers of bf16 go as far as those of f32, and it resolves less: its exponentials are the 1024th
power of a polynomial, right to 1.3e-4 of the result between -87 and 88.7, a thirtieth of what it
resolves. What is below is taken for -110, of which f32 makes a zero. Other functions stop where
what is left of them is below 3e-8, which f16 does not resolve.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.strided_windows import Dim, Window, dense
from meshc.analysis.csl.vector_steps import Steps
from meshc.ir.types import DType


@dataclass(frozen=True)
class _Root:
    """A polynomial whose square, so many times, is a function of what is at ``least`` or above."""

    least: float
    coefficients: tuple[float, ...]
    squarings: int = 5


LEAST = -20.5
_EXP = _Root(LEAST, (
    0.9999996299, 0.03124978789, 0.0004883010367, 5.092262104e-06, 3.972812465e-08, 2.128892314e-10,
))  # fmt: skip
"""Minimax polynomial for the relative error of exp(x / 32) between -20.5 and 11.2."""
_FAR_EXP = _Root(-110.0, (1.0, 2.0**-10, 2.0**-21, 2.0**-30 / 6, 2.0**-40 / 24), 10)
"""The first terms of the series of exp(x / 1024)."""
_INVERSE = (2.121211651, -1.454544802, 0.3232321089)
"""Minimax polynomial for the relative error of 1 / x between 1 and 2: 1.01e-2."""
_SHARE_BELOW = _Root(-5.8, (
    0.9785722717, 0.02440520741, -0.00940490918, 0.0009152018965, 0.000260673363, 1.60862624e-05,
    3.097361481e-07,
))  # fmt: skip
"""Minimax polynomial for the relative error of the 32nd root of (1 + erf(x / sqrt(2))) / 2, the
share of a normal distribution below x, between -5.8 and 0: 6.9e-6 of the 32nd power."""
_LEAST_OF_TANH = -5.4
_TANH = (1.5957691216, 0.0713548163)
"""2 sqrt(2 / pi) times 1 and 0.044715, of the usual approximation of GELU."""


def exponentials(costs: Costs, to: Window, source: Window, most: Window) -> Steps:
    """exp(source - most), source [*rows, lanes] and most [*rows]."""
    steps = Steps(costs)
    power, value = steps.room(source.size), steps.room(source.size)
    above = most
    if most.dtype != DType.F32:
        above = steps.wide(most, steps.room(most.size)).inner(dense(most.dims))
    steps.do("@fsubs", value, steps.wide(source, value), _over_lanes(above, source))
    root = _FAR_EXP if to.dtype == DType.BF16 else _EXP
    steps.do("@fmaxs", value, value, root.least)
    _power(steps, power, value, root)
    steps.do("@fs2h", to, power)
    return steps


def silu(costs: Costs, to: Window, source: Window) -> Steps:
    """x / (1 + exp(-x)), as max(x, 0) - |x| a / (1 + a) with a = exp(-|x|), of which no part is
    large."""
    steps = Steps(costs)
    value, below, power, inverse, sum_ = (steps.room(source.size) for _ in range(5))
    wide = steps.wide(source, value)
    _below_zero(steps, below, wide, LEAST)
    _power(steps, power, below, _EXP)
    _share(steps, power, inverse, sum_)
    _gated(steps, to, wide, below, power, value)
    return steps


_LEAST_OF_HALF, _MOST_OF_HALF = -18.0, 12.0
"""Between these f16 tells exponentials from zero and from infinity."""
_HALF_EXP = (1.0, 0.5, 0.1262, 0.0208)
"""Near exp(x / 2) between -0.71 and 0.71: 1.4e-4 of it with the coefficients in f16."""
_HALF_TURN = 0.7213475204
"""Half of the powers of two in e."""
_ONES = 1536.0
"""1.5 * 2^10: an f16 below 2^9 that is added to it is rounded to a whole number, which the last
bits of the sum are."""
_TWO_LN_2 = (1.375, 0.0112943611)
"""2 ln 2 in two parts, products of the first of which with whole numbers are exact."""


def exponentials_in_half(costs: Costs, to: Window, source: Window, most: Window) -> Steps:
    """exp(source - most) in f16, source [*rows, lanes] and most [*rows]."""
    steps = Steps(costs, DType.F16)
    value, power, turns = (steps.room(source.size) for _ in range(3))
    above = most
    if most.dtype != DType.F16:
        above = steps.wide(most, steps.room(most.size)).inner(dense(most.dims))
    steps.do("@fsubh", value.inner(dense(source.dims)), _over_lanes(above, source), source)
    steps.do("@fmaxh", value, value, -_MOST_OF_HALF)
    steps.do("@fnegh", value, value)
    steps.do("@fmaxh", value, value, _LEAST_OF_HALF)
    _half_power(steps, power, value, turns)
    steps.do("@fmulh", to, power.inner(dense(to.dims)), power.inner(dense(to.dims)))
    return steps


def silu_in_half(costs: Costs, to: Window, source: Window) -> Steps:
    """The same as :func:`silu`, in f16."""
    steps = Steps(costs, DType.F16)
    given, size, value, power, turns = (steps.room(source.size) for _ in range(5))
    narrow = steps.wide(source, given)
    steps.do("@fabsh", size, narrow)
    steps.do("@fnegh", value, size)
    steps.do("@fmaxh", value, value, _LEAST_OF_HALF)
    _half_power(steps, power, value, turns)
    steps.do("@fmulh", power, power, power)
    steps.do("@faddh", turns, power, 1.0)
    steps.polynomial(value, turns, _INVERSE)
    steps.do("@fmulh", turns, turns, value)
    steps.do("@fsubh", turns, 2.0, turns)
    steps.do("@fmulh", value, value, turns)
    steps.do("@fmulh", power, power, value)
    steps.do("@fmulh", power, power, size)
    steps.do("@fmaxh", value, narrow, 0.0)
    steps.do("@fsubh", to, value, power)
    return steps


def _half_power(steps: Steps, to: Window, value: Window, turns: Window) -> None:
    """exp(value / 2), by way of ``turns``; ``value`` is spent."""
    steps.do("@fmulh", turns, value, _HALF_TURN)
    steps.do("@faddh", turns, turns, _ONES)
    steps.do("@fsubh", to, turns, _ONES)
    for part in _TWO_LN_2:
        steps.do("@fmach", value, value, to, -part)
    steps.polynomial(to, value, _HALF_EXP)
    steps.do("@sll16", turns, turns, 10)
    steps.do("@add16", to, to, turns)


def gelu_by_tanh(costs: Costs, to: Window, source: Window) -> Steps:
    """x / (1 + exp(-z)) with z = 2 sqrt(2 / pi) (x + 0.044715 x^3), in the same way as SiLU."""
    steps = Steps(costs)
    value, below, power, inverse, sum_ = (steps.room(source.size) for _ in range(5))
    wide = steps.wide(source, value)
    _below_zero(steps, below, wide, _LEAST_OF_TANH)
    steps.do("@fmuls", sum_, below, below)
    steps.do("@fmuls", sum_, sum_, _TANH[1])
    steps.do("@fadds", sum_, sum_, _TANH[0])
    steps.do("@fmuls", inverse, sum_, below)
    _power(steps, power, inverse, _EXP)
    _share(steps, power, inverse, sum_)
    _gated(steps, to, wide, below, power, value)
    return steps


def gelu_by_erf(costs: Costs, to: Window, source: Window) -> Steps:
    """x (1 + erf(x / sqrt(2))) / 2, as max(x, 0) - |x| q, where q is the share of a normal
    distribution below -|x|."""
    steps = Steps(costs)
    value, below, power = (steps.room(source.size) for _ in range(3))
    wide = steps.wide(source, value)
    _below_zero(steps, below, wide, _SHARE_BELOW.least)
    _power(steps, power, below, _SHARE_BELOW)
    _gated(steps, to, wide, below, power, value)
    return steps


def _below_zero(steps: Steps, to: Window, value: Window, least: float) -> None:
    """-|value|, and ``least`` for what is below it."""
    steps.do("@fabss", to, value)
    steps.do("@fnegs", to, to)
    steps.do("@fmaxs", to, to, least)


def _power(steps: Steps, to: Window, value: Window, root: _Root) -> None:
    """The polynomial ``root``, squared again and again."""
    steps.polynomial(to, value, root.coefficients)
    for _ in range(root.squarings):
        steps.do("@fmuls", to, to, to)


def _share(steps: Steps, power: Window, inverse: Window, sum_: Window) -> None:
    """``power`` a between 0 and 1 becomes a / (1 + a)."""
    steps.do("@fadds", sum_, power, 1.0)
    steps.polynomial(inverse, sum_, _INVERSE)
    # One step of Newton's: 1e-4 of the inverse.
    steps.do("@fmuls", sum_, sum_, inverse)
    steps.do("@fsubs", sum_, 2.0, sum_)
    steps.do("@fmuls", inverse, inverse, sum_)
    steps.do("@fmuls", power, power, inverse)


def _gated(
    steps: Steps, to: Window, source: Window, below: Window, share: Window, value: Window
) -> None:
    """max(source, 0) + below share, by way of ``value``."""
    steps.do("@fmuls", share, share, below)
    steps.do("@fmaxs", value, source, 0.0)
    steps.do("@fadds", value, value, share)
    steps.do("@fs2h", to, value)


def _over_lanes(most: Window, source: Window) -> Window:
    """One value of each row of ``source``, repeated over its lanes."""
    lanes = source.dims[len(most.dims) :]
    return most.inner((*most.dims, *(Dim(dim.extent, 0) for dim in lanes)))
