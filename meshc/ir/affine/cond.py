"""Conditions on affine expressions: comparisons joined by ``and`` and ``or``, in normal form.

A :class:`Constraint` is ``expr = 0`` or ``expr >= 0``; a :class:`Cond` is a disjunction of
conjunctions of them. Guards, domains and ranges are conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshc.ir.affine.expr import CoordinateFunction, Expr, IntLike, Mod, as_expr, atom_key
from meshc.support.diagnostics import fail
from meshc.support.shared import hashed_once, shared

BoolArray = NDArray[np.bool_]
BoolLike = bool | BoolArray

MAX_CONJUNCTIONS = 256

Relation = Literal["=", ">="]


@dataclass(frozen=True)
class Constraint:
    """``expr = 0`` or ``expr >= 0`` with at least one atom; make it with :meth:`normal`."""

    expr: Expr
    relation: Relation

    @staticmethod
    @shared
    def normal(expr: Expr, relation: Relation) -> Constraint | bool:
        """The normal form, or a truth value where the comparison is decided.

        Common factors are divided out; a lone ``e mod k`` is compared within ``0 .. k - 1``.
        """
        if expr.is_const:
            return expr.constant == 0 if relation == "=" else expr.constant >= 0
        common = gcd(*(c for _, c in expr.terms))
        if relation == "=" and expr.constant % common:
            return False
        scaled = expr
        if common > 1:
            divided = tuple((atom, c // common) for atom, c in expr.terms)
            scaled = Expr(divided, expr.constant // common)
        if relation == "=" and scaled.terms[0][1] < 0:
            scaled = -scaled
        atom, coefficient = scaled.terms[0]
        if len(scaled.terms) == 1 and isinstance(atom, Mod):
            return _within_modulus(atom, coefficient, scaled.constant, relation)
        return Constraint(scaled, relation)

    def negated(self) -> tuple[Constraint | bool, ...]:
        """The comparisons whose disjunction is the contrary of this one."""
        below = Constraint.normal(-self.expr - 1, ">=")
        if self.relation == ">=":
            return (below,)
        return (Constraint.normal(self.expr - 1, ">="), below)

    def evaluate(
        self,
        env: Mapping[str, IntLike],
        functions: Mapping[str, CoordinateFunction] | None = None,
    ) -> BoolLike:
        """Truth, elementwise on arrays."""
        value = self.expr.evaluate(env, functions)
        return value == 0 if self.relation == "=" else value >= 0

    @cached_property
    def sort_key(self) -> tuple[int, str, int, str]:
        """By first atom; equations, then lower, then upper bounds."""
        atom, coefficient = self.expr.terms[0]
        kind = 0 if self.relation == "=" else 1 if coefficient > 0 else 2
        return (*atom_key(atom), kind, self._text)

    @cached_property
    def _text(self) -> str:
        constant = self.expr.constant
        plus = Expr(tuple((a, c) for a, c in self.expr.terms if c > 0))
        minus = Expr(tuple((a, -c) for a, c in self.expr.terms if c < 0))
        if self.relation == "=":
            return f"{plus} = {minus - constant}"
        if minus.is_const:
            return f"{plus} >= {-constant}"
        if not plus.is_const and constant == -1:
            return f"{minus} < {plus}"
        return f"{minus} <= {plus + constant}"

    def __str__(self) -> str:
        return self._text


def _within_modulus(
    atom: Mod, coefficient: int, constant: int, relation: Relation
) -> Constraint | bool:
    """Compare ``atom`` (coefficient 1 or -1) knowing that it lies in ``0 .. modulus - 1``."""
    value, last = Expr(((atom, 1),)), atom.modulus - 1
    if relation == "=":
        return 0 <= -constant <= last and _residue(atom, -constant)
    if coefficient > 0:
        decided, edge, at_edge = -constant <= 0, last, -constant
        impossible = -constant > last
    else:
        decided, edge, at_edge = constant >= last, 0, constant
        impossible = constant < 0
    if decided or impossible:
        return decided
    if at_edge == edge:
        return _residue(atom, edge)
    return Constraint(value * coefficient + constant, ">=")


def _residue(atom: Mod, remainder: int) -> Constraint:
    """``atom = remainder`` with the constant of the mod's body moved to the right."""
    shift = atom.body.constant
    bare = Expr(((Mod(atom.body - shift, atom.modulus), 1),))
    return Constraint(bare - (remainder - shift) % atom.modulus, "=")


@hashed_once
@dataclass(frozen=True)
class Cond:
    """A disjunction of conjunctions; ``((),)`` is true and ``()`` is false."""

    clauses: tuple[tuple[Constraint, ...], ...]

    # -- building -------------------------------------------------------------------------------
    @staticmethod
    def true() -> Cond:
        """Always holds."""
        return Cond(((),))

    @staticmethod
    def false() -> Cond:
        """Never holds."""
        return Cond(())

    @staticmethod
    def of(comparison: Constraint | bool) -> Cond:
        """A single comparison."""
        if isinstance(comparison, bool):
            return Cond.true() if comparison else Cond.false()
        return Cond(((comparison,),))

    @staticmethod
    def eq(left: Expr | int, right: Expr | int) -> Cond:
        """``left = right``."""
        return Cond.of(Constraint.normal(as_expr(left) - right, "="))

    @staticmethod
    def ge(left: Expr | int, right: Expr | int) -> Cond:
        """``left >= right``."""
        return Cond.of(Constraint.normal(as_expr(left) - right, ">="))

    @staticmethod
    def gt(left: Expr | int, right: Expr | int) -> Cond:
        """``left > right``."""
        return Cond.ge(left, as_expr(right) + 1)

    @staticmethod
    def le(left: Expr | int, right: Expr | int) -> Cond:
        """``left <= right``."""
        return Cond.ge(right, left)

    @staticmethod
    def lt(left: Expr | int, right: Expr | int) -> Cond:
        """``left < right``."""
        return Cond.gt(right, left)

    @staticmethod
    def ne(left: Expr | int, right: Expr | int) -> Cond:
        """``left != right``."""
        return Cond.lt(left, right) | Cond.gt(left, right)

    @staticmethod
    @shared
    def between(low: Expr | int, value: Expr | int, end: Expr | int) -> Cond:
        """``low <= value < end``."""
        return Cond.le(low, value) & Cond.lt(value, end)

    @staticmethod
    def all(parts: Iterable[Cond]) -> Cond:
        """The conjunction of all parts."""
        return _all(tuple(parts))

    @staticmethod
    def any(parts: Iterable[Cond]) -> Cond:
        """The disjunction of all parts."""
        return _any(tuple(parts))

    @shared
    def __and__(self, other: Cond) -> Cond:
        if self.is_true or other.is_true:
            return other if self.is_true else self
        return _normal((*a, *b) for a in self.clauses for b in other.clauses)

    @shared
    def __or__(self, other: Cond) -> Cond:
        return _normal((*self.clauses, *other.clauses))

    @shared
    def __invert__(self) -> Cond:
        contrary = Cond.true()
        for clause in self.clauses:
            contrary = contrary & Cond.any(Cond.of(n) for c in clause for n in c.negated())
        return contrary

    # -- reading --------------------------------------------------------------------------------
    @property
    def is_true(self) -> bool:
        """Whether the normal form is ``true`` (no proof is tried)."""
        return self.clauses == ((),)

    @property
    def is_false(self) -> bool:
        """Whether the normal form is ``false`` (no proof is tried)."""
        return not self.clauses

    @cached_property
    def free_vars(self) -> frozenset[str]:
        """Every name that occurs."""
        return frozenset(n for clause in self.clauses for c in clause for n in c.expr.free_vars)

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the coordinate functions that are called."""
        return frozenset(n for clause in self.clauses for c in clause for n in c.expr.functions)

    def substitute(self, values: Mapping[str, Expr | int]) -> Cond:
        """This condition with names replaced, all at once."""
        known = tuple((name, values[name]) for name in self.free_vars if name in values)
        return _substituted(self, known) if known else self

    def evaluate(
        self,
        env: Mapping[str, IntLike],
        functions: Mapping[str, CoordinateFunction] | None = None,
    ) -> BoolLike:
        """Truth, elementwise on arrays (broadcast over the names that occur, not all of ``env``).

        Raises ``affine-unbound`` for a name or function that is not given.
        """
        result: BoolLike = False
        for clause in self.clauses:
            holds: BoolLike = True
            for constraint in clause:
                holds = holds & constraint.evaluate(env, functions)
            result = result | holds
        return result

    @cached_property
    def _text(self) -> str:
        if self.is_true:
            return "true"
        return " or ".join(" and ".join(map(str, c)) for c in self.clauses) or "false"

    def __str__(self) -> str:
        return self._text


@shared
def _substituted(cond: Cond, values: tuple[tuple[str, Expr | int], ...]) -> Cond:
    """``cond`` with the names of pairs replaced by what stands beside them."""
    known = dict(values)
    return Cond.any(
        Cond.all(Cond.of(Constraint.normal(c.expr.substitute(known), c.relation)) for c in clause)
        for clause in cond.clauses
    )


@shared
def _all(parts: tuple[Cond, ...]) -> Cond:
    single: list[Constraint] = []
    result = Cond.true()
    for part in parts:
        if len(part.clauses) == 1:
            single += part.clauses[0]
        else:
            result = result & part
    return result & _normal([single])


@shared
def _any(parts: tuple[Cond, ...]) -> Cond:
    return _normal(clause for part in parts for clause in part.clauses)


def _normal(clauses: Iterable[Iterable[Constraint]]) -> Cond:
    """Sorted, without doubles, and without clauses implied by a shorter one."""
    distinct: set[frozenset[Constraint]] = set()
    for clause in clauses:
        distinct.add(frozenset(clause))
        if len(distinct) > 4 * MAX_CONJUNCTIONS:
            _too_many()
    kept = [c for c in distinct if not any(other < c for other in distinct)]
    if len(kept) > MAX_CONJUNCTIONS:
        _too_many()
    return Cond(tuple(sorted((tuple(sorted(c, key=_key)) for c in kept), key=_clause_key)))


def _key(constraint: Constraint) -> tuple[int, str, int, str]:
    return constraint.sort_key


def _clause_key(clause: tuple[Constraint, ...]) -> list[tuple[int, str, int, str]]:
    return [c.sort_key for c in clause]


def _too_many() -> None:
    fail(
        "bad-affine",
        f"condition needs more than {MAX_CONJUNCTIONS} alternatives",
        help="split it into several statements, or state it without 'not' over long alternatives",
    )
