"""Mathematical functions at run time, with their cost in cycles (predicted, see docs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshc.sim.machine.pe import Pe
from meshc.sim.real_functions import CONSTANTS, TESTS, real
from meshc.sim.sema.csl_types import F16, F32

_KINDS = {"f16": F16, "f32": F32}


def _function(name: str, cycles: int) -> Callable[..., Any]:
    def apply(pe: Pe, kind: str, *args: float) -> float:
        pe.t += cycles
        return real(name, _KINDS[kind], *args)

    return apply


# Predicted, see docs/sim.md. The C back end takes these functions in this order.
CYCLES = {
    "floor": 4, "ceil": 4, "sqrt": 40, "cos": 60, "sin": 60, "exp": 40, "log": 50, "inv": 40,
    "invsqrt": 50, "tanh": 60, "pow": 90, "fscale": 2,
}  # fmt: skip


def _test(test: Callable[[float], bool]) -> Callable[..., bool]:
    return lambda pe, kind, x: test(x)


def _constant(value: float) -> Callable[..., float]:
    return lambda pe, kind: value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _function(name, cycles) for name, cycles in CYCLES.items()},
    **{name: _test(test) for name, test in TESTS.items()},
    **{name: _constant(value) for name, value in CONSTANTS.items()},
}
