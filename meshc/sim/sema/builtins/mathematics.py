"""Mathematical functions at compile time."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshc.sim.numbers import float_div, round_to
from meshc.sim.sema.builtins.values import KNOWN_FUNCTIONS
from meshc.sim.sema.types import Type


def _rounded(function: Callable[[float], float]) -> Callable[[Type, float], float]:
    def at_comptime(kind: Type, x: float) -> float:
        try:
            return round_to(kind, function(float(x)))
        except (ValueError, OverflowError):
            return math.nan

    return at_comptime


KNOWN_FUNCTIONS.update(
    {
        "floor": _rounded(math.floor),
        "ceil": _rounded(math.ceil),
        "tanh": _rounded(math.tanh),
        "cos": _rounded(math.cos),
        "sin": _rounded(math.sin),
        "exp": _rounded(math.exp),
        "sqrt": _rounded(math.sqrt),
        "log": _rounded(math.log),
        "inv": _rounded(lambda x: float_div(1.0, x)),
        "invsqrt": _rounded(lambda x: float_div(1.0, math.sqrt(x))),
        "inf": lambda kind: math.inf,
        "nan": lambda kind: math.nan,
        "signbit": lambda kind, x: math.copysign(1.0, x) < 0,
        "pow": lambda kind, x, y: round_to(kind, math.pow(x, y)),
        "fscale": lambda kind, x, n: round_to(kind, math.ldexp(x, n)),
        "isnan": lambda kind, x: x != x,
        "isinf": lambda kind, x: math.isinf(x),
    }
)
