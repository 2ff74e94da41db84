"""Mathematical functions at run time, with their cost in cycles (predicted, see docs)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshc.sim.machine.pe import Pe
from meshc.sim.numbers import float_div, round_to
from meshc.sim.sema.types import F16, F32

_KINDS = {"f16": F16, "f32": F32}


def _function(function: Callable[..., float], cycles: int) -> Callable[..., Any]:
    def apply(pe: Pe, kind: str, *args: float) -> float:
        pe.t += cycles
        try:
            return round_to(_KINDS[kind], function(*args))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return apply


def _inv_sqrt(x: float) -> float:
    return float_div(1.0, math.sqrt(x))


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _rounder(function: Callable[[float], int]) -> Callable[[float], float]:
    def apply(x: float) -> float:
        return x if math.isinf(x) or x != x else float(function(x))

    return apply


# Predicted, see docs/sim.md. The C back end takes these functions in this order.
CYCLES = {
    "floor": 4, "ceil": 4, "sqrt": 40, "cos": 60, "sin": 60, "exp": 40, "log": 50, "inv": 40,
    "invsqrt": 50, "tanh": 60, "pow": 90, "fscale": 2,
}  # fmt: skip

_COMPUTE: dict[str, Callable[..., float]] = {
    "floor": _rounder(math.floor),
    "ceil": _rounder(math.ceil),
    "sqrt": math.sqrt,
    "cos": math.cos,
    "sin": math.sin,
    "exp": math.exp,
    "log": _log,
    "inv": lambda x: float_div(1.0, x),
    "invsqrt": _inv_sqrt,
    "tanh": math.tanh,
    "pow": math.pow,
    "fscale": math.ldexp,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _function(compute, CYCLES[name]) for name, compute in _COMPUTE.items()},
    "isnan": lambda pe, kind, x: x != x,
    "isinf": lambda pe, kind, x: math.isinf(x),
    "signbit": lambda pe, kind, x: math.copysign(1.0, x) < 0,
    "inf": lambda pe, kind: math.inf,
    "nan": lambda pe, kind: math.nan,
}
