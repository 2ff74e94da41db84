"""Functions of real numbers, the same at compile time and on the machine."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshc.sim.exact_numbers import float_div, round_to
from meshc.sim.sema.csl_types import Type


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _pow(x: float, y: float) -> float:
    if x == 0 and y < 0:
        return float_div(1.0, math.pow(x, -y))
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf


def _fscale(x: float, n: float) -> float:
    try:
        return math.ldexp(x, int(n))
    except OverflowError:
        return math.copysign(math.inf, x)


def _rounder(function: Callable[[float], int]) -> Callable[[float], float]:
    def apply(x: float) -> float:
        return x if math.isinf(x) or x != x else float(function(x))

    return apply


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "floor": _rounder(math.floor),
    "ceil": _rounder(math.ceil),
    "sqrt": math.sqrt,
    "cos": math.cos,
    "sin": math.sin,
    "exp": math.exp,
    "log": _log,
    "inv": lambda x: float_div(1.0, x),
    "invsqrt": lambda x: float_div(1.0, math.sqrt(x)),
    "tanh": math.tanh,
    "pow": _pow,
    "fscale": _fscale,
}
NAMES = tuple(_FUNCTIONS)
TESTS: dict[str, Callable[[float], bool]] = {
    "isnan": lambda x: x != x,
    "isinf": math.isinf,
    "signbit": lambda x: math.copysign(1.0, x) < 0,
}
CONSTANTS = {"inf": math.inf, "nan": math.nan}


def real(name: str, kind: Type, *args: float) -> float:
    """The value of a function in a format: NaN where there is none, infinite where it is large."""
    try:
        return round_to(kind, _FUNCTIONS[name](*args))
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf
