"""Affine texts of a tile program, evaluated for one core at a time and remembered.

An expression depends on few names of a core's environment (coordinates, loop variables, run-time
scalars); its value is computed once for each combination of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from meshc.ir.affine import Cond, CoordinateFunction, Expr
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

Env = Mapping[str, int]
T = TypeVar("T")

_REMEMBERED = 1_000_000


class Memo(Generic[T]):
    """A function of the ``names`` of an environment that remembers its values."""

    def __init__(self, names: Iterable[str], compute: Callable[[Env], T]) -> None:
        names = sorted(names)
        self._key: Callable[[Env], Any] = itemgetter(*names) if names else _nothing
        self._compute = compute
        self._known: dict[Any, T] = {}

    def __call__(self, env: Env) -> T:
        key = self._key(env)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._compute(env)
        return found


def _nothing(env: Env) -> None:
    return None


@dataclass(frozen=True)
class Names:
    """The names that mean something at a place of a program, and the coordinate functions."""

    known: frozenset[str]
    functions: Mapping[str, CoordinateFunction]

    def with_names(self, *names: str) -> Names:
        """The names that are known inside a loop over ``names`` at this place."""
        return Names(self.known.union(names), self.functions)

    def expr(self, expr: Expr, span: Span | None) -> Memo[int]:
        """``expr`` as a function of a core's environment. Raises ``affine-unbound``."""
        self.check(expr, span)
        return Memo(expr.free_vars, lambda env: int(expr.evaluate(env, self.functions)))

    def cond(self, cond: Cond | None, span: Span | None) -> Memo[bool] | None:
        """``cond`` as a function of a core's environment; None when there is none."""
        if cond is None or cond.is_true:
            return None
        self.check(cond, span)
        return Memo(cond.free_vars, lambda env: bool(cond.evaluate(env, self.functions)))

    def check(self, text: Expr | Cond, span: Span | None) -> None:
        """Fail with ``affine-unbound`` at a name that has no value here."""
        unknown = sorted(text.free_vars - self.known)
        unknown += sorted(text.functions - self.functions.keys())
        if unknown:
            fail("affine-unbound", f"'{unknown[0]}' has no value in '{text}'", span)
