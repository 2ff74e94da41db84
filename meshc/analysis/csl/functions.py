"""Exponentials and SiLU of f16 elements by vector operations in f32.

Both rest on exp(x) = p(x)^32 for x between -20.5 and 11.2, where p is a polynomial that is near to
exp(x / 32): right to 2.1e-5 of the result, a twentieth of what f16 resolves. What is below is taken
for -20.5, of which f16 makes a zero; what is above grows on, and f16 makes an infinity of both.
"""

from __future__ import annotations

from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.windows import Dim, Window

LEAST = -20.5
_EXP = (
    0.9999996299, 0.03124978789, 0.0004883010367, 5.092262104e-06, 3.972812465e-08, 2.128892314e-10,
)  # fmt: skip
"""Minimax polynomial for the relative error of exp(x / 32) between -20.5 and 11.2."""
_SQUARINGS = 5
_INVERSE = (2.121211651, -1.454544802, 0.3232321089)
"""Minimax polynomial for the relative error of 1 / x between 1 and 2: 1.01e-2."""


def exponentials(costs: Costs, to: Window, source: Window, most: Window) -> Steps:
    """exp(source - most), f16 [*rows, lanes] and most [*rows]."""
    steps = Steps(costs)
    lanes = source.dims[len(most.dims) :]
    above = most.inner((*most.dims, *(Dim(dim.extent, 0) for dim in lanes)))
    power, value = steps.room(source.size), steps.room(source.size)
    steps.do("@fsubh", to, source, above)
    steps.do("@fh2s", value, to)
    _exp(steps, power, value)
    steps.do("@fs2h", to, power)
    return steps


def silu(costs: Costs, to: Window, source: Window) -> Steps:
    """x / (1 + exp(-x)) of f16 elements, as max(x, 0) - |x| a / (1 + a) with a = exp(-|x|), of
    which no part is large."""
    steps = Steps(costs)
    value, below, power, inverse, sum_ = (steps.room(source.size) for _ in range(5))
    steps.do("@fh2s", value, source)
    steps.do("@fabss", below, value)
    steps.do("@fnegs", below, below)
    _exp(steps, power, below)
    steps.do("@fadds", sum_, power, 1.0)
    steps.polynomial(inverse, sum_, _INVERSE)
    # One step of Newton's: 1e-4 of the inverse.
    steps.do("@fmuls", sum_, sum_, inverse)
    steps.do("@fsubs", sum_, 2.0, sum_)
    steps.do("@fmuls", inverse, inverse, sum_)
    steps.do("@fmuls", power, power, inverse)
    steps.do("@fmuls", power, power, below)
    steps.do("@fmaxs", value, value, 0.0)
    steps.do("@fadds", value, value, power)
    steps.do("@fs2h", to, value)
    return steps


def _exp(steps: Steps, to: Window, value: Window) -> None:
    """exp of f32 elements; those below ``LEAST`` become it."""
    steps.do("@fmaxs", value, value, LEAST)
    steps.polynomial(to, value, _EXP)
    for _ in range(_SQUARINGS):
        steps.do("@fmuls", to, to, to)
