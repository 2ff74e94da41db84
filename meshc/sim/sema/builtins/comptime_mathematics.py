"""Mathematical functions at compile time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meshc.sim.real_functions import CONSTANTS, NAMES, TESTS, real
from meshc.sim.sema.builtins.values import KNOWN_FUNCTIONS
from meshc.sim.sema.csl_types import Type


def _test(test: Callable[[float], bool]) -> Callable[[Type, float], bool]:
    return lambda kind, x: test(x)


def _constant(value: float) -> Callable[[Type], Any]:
    return lambda kind: value


KNOWN_FUNCTIONS.update({name: partial(real, name) for name in NAMES})
KNOWN_FUNCTIONS.update({name: _test(test) for name, test in TESTS.items()})
KNOWN_FUNCTIONS.update({name: _constant(value) for name, value in CONSTANTS.items()})
