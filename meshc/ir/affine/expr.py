"""Quasi-affine integer expressions in canonical form.

An expression is a constant plus integer multiples of *atoms*: a name, ``e mod k``, ``floor(e/k)``
with a positive literal ``k``, or a call ``name(e)`` of a coordinate function. Construction
normalises (like terms merged, constants folded, nested floors joined), so equal text means equal
object. ``mod`` and ``floor`` follow the floor convention also for negative numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.support.diagnostics import fail
from meshc.support.shared import hashed_once, shared

IntArray = NDArray[np.int64]
IntLike = int | IntArray

MAX_DEPTH = 32
MAX_INTEGER = 2**53

_NAME = re.compile(r"[a-z_][a-z0-9_.]*\Z")
RESERVED = frozenset({"and", "or", "not", "mod", "floor", "true", "false"})


class CoordinateFunction(Protocol):
    """A function of one integer, elementwise on arrays: how a ``name(e)`` atom is evaluated."""

    def __call__(self, value: IntLike, /) -> IntLike: ...


@dataclass(frozen=True)
class Var:
    """A named integer: core coordinate, loop variable or run-time scalar."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Mod:
    """``body mod modulus``, in ``0 .. modulus - 1``."""

    body: Expr
    modulus: int

    def __str__(self) -> str:
        return f"{_tight(self.body)} mod {self.modulus}"


@dataclass(frozen=True)
class Floor:
    """``floor(body / divisor)``, rounding towards minus infinity."""

    body: Expr
    divisor: int

    def __str__(self) -> str:
        return f"floor({_tight(self.body)}/{self.divisor})"


@dataclass(frozen=True)
class Call:
    """``function(argument)``: a coordinate function whose definition is given on use."""

    function: str
    argument: Expr

    def __str__(self) -> str:
        return f"{self.function}({self.argument})"


Atom = Var | Mod | Floor | Call

_RANK: dict[type[Atom], int] = {Var: 0, Mod: 1, Floor: 2, Call: 3}


def atom_key(atom: Atom) -> tuple[int, str]:
    """Sort key of atoms: names, then mods, then floors, then calls; by text within a kind."""
    return _RANK[type(atom)], str(atom)


@hashed_once
@dataclass(frozen=True)
class Expr:
    """``constant + sum(coefficient * atom)``; build with :meth:`var`, :meth:`const`, operators.

    ``terms`` is sorted and holds no zero coefficient. Raises ``bad-affine`` when an operation would
    nest deeper than ``MAX_DEPTH`` or exceed ``MAX_INTEGER``.
    """

    terms: tuple[tuple[Atom, int], ...]
    constant: int = 0

    # -- building -------------------------------------------------------------------------------
    @staticmethod
    @shared
    def var(name: str) -> Expr:
        """The expression that is just ``name``."""
        return Expr(((Var(checked_name(name)), 1),))

    @staticmethod
    @shared
    def const(value: int) -> Expr:
        """A constant."""
        return Expr((), _bounded(int(value)))

    @staticmethod
    def call(function: str, argument: Expr | int) -> Expr:
        """``function(argument)`` for a coordinate function."""
        return _of_atom(Call(checked_name(function), as_expr(argument)))

    @staticmethod
    def sum(terms: Iterable[tuple[Atom, int]], constant: int = 0) -> Expr:
        """The canonical sum of ``coefficient * atom`` over any terms, merged and sorted."""
        merged: dict[Atom, int] = {}
        for atom, coefficient in terms:
            merged[atom] = merged.get(atom, 0) + coefficient
        kept = [(a, _bounded(c)) for a, c in merged.items() if c]
        kept.sort(key=lambda term: atom_key(term[0]))
        return Expr(tuple(kept), _bounded(constant))

    @shared
    def __add__(self, other: Expr | int) -> Expr:
        other = as_expr(other)
        if not self.terms or not other.terms:
            return Expr(self.terms or other.terms, _bounded(self.constant + other.constant))
        return Expr.sum((*self.terms, *other.terms), self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    @shared
    def __sub__(self, other: Expr | int) -> Expr:
        return self + as_expr(other) * -1

    def __rsub__(self, other: int) -> Expr:
        return as_expr(other) + self * -1

    @shared
    def __mul__(self, factor: int) -> Expr:
        if not factor:
            return Expr(())
        terms = tuple((a, _bounded(c * factor)) for a, c in self.terms)
        return Expr(terms, _bounded(self.constant * factor))

    __rmul__ = __mul__

    @shared
    def __mod__(self, modulus: int) -> Expr:
        """``self mod modulus``; the body's constant is brought into ``0 .. modulus - 1``."""
        modulus = _positive(modulus)
        body = _reduced_mod(self, modulus)
        common = _content(body, modulus)
        if common > 1:
            return (_exact(body, common) % (modulus // common)) * common
        if not body.terms:
            return Expr.const(body.constant)
        return _of_atom(Mod(body, modulus))

    @shared
    def __floordiv__(self, divisor: int) -> Expr:
        """``floor(self / divisor)``; whole multiples of the divisor are taken out of the floor."""
        divisor = _positive(divisor)
        whole, rest = _split_multiples(self, divisor)
        if not rest.terms:
            return whole
        common = gcd(divisor, *(c for _, c in rest.terms))
        if common > 1:
            # floor((g*e + c) / (g*k)) = floor((e + floor(c/g)) / k)
            parts = ((a, c // common) for a, c in rest.terms)
            return whole + Expr.sum(parts, rest.constant // common) // (divisor // common)
        inner = rest.terms[0][0]
        if isinstance(inner, Floor) and rest.terms == ((inner, 1),):
            # floor((floor(e/a) + c) / k) = floor((e + a*c) / (a*k))
            joined = inner.body + rest.constant * inner.divisor
            return whole + joined // (inner.divisor * divisor)
        return whole + _of_atom(Floor(rest, divisor))

    # -- reading --------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        """Whether no atom is left."""
        return not self.terms

    @cached_property
    def depth(self) -> int:
        """Nesting depth of mods, floors and calls."""
        inner = (_inside(atom) for atom, _ in self.terms)
        return max((1 + body.depth for body in inner if body is not None), default=0)

    @cached_property
    def free_vars(self) -> frozenset[str]:
        """Every name that occurs, coordinate functions excepted."""
        names: set[str] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                names.add(atom.name)
            else:
                names |= _body(atom).free_vars
        return frozenset(names)

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the coordinate functions that are called."""
        names: set[str] = set()
        for atom, _ in self.terms:
            if not isinstance(atom, Var):
                names |= _body(atom).functions
            if isinstance(atom, Call):
                names.add(atom.function)
        return frozenset(names)

    def substitute(self, values: Mapping[str, Expr | int]) -> Expr:
        """This expression with names replaced, all at once."""
        known = tuple((name, values[name]) for name in self.free_vars if name in values)
        return _substituted(self, known) if known else self

    def evaluate(
        self,
        env: Mapping[str, IntLike],
        functions: Mapping[str, CoordinateFunction] | None = None,
    ) -> IntLike:
        """The value, elementwise with NumPy broadcasting when ``env`` holds arrays.

        Raises ``affine-unbound`` for a name or function that is not given.
        """
        total: IntLike = self.constant
        for atom, coefficient in self.terms:
            total = total + coefficient * _evaluated(atom, env, functions or {})
        return total

    @cached_property
    def _text(self) -> str:
        positive = [(_factor(a, c), 1) for a, c in self.terms if c > 0]
        negative = [(_factor(a, c), -1) for a, c in self.terms if c < 0]
        constant = [(str(abs(self.constant)), 1 if self.constant > 0 else -1)]
        if not self.constant:
            constant = [] if self.terms else [("0", 1)]
        if positive or self.constant <= 0:
            return _joined([*positive, *negative, *constant])
        return _joined([*constant, *negative])

    def __str__(self) -> str:
        return self._text


def as_expr(value: Expr | int) -> Expr:
    """``value`` as an expression."""
    return value if isinstance(value, Expr) else Expr.const(value)


def is_name(name: str) -> bool:
    """Whether ``name`` can be a name in an affine expression."""
    return bool(_NAME.match(name)) and name not in RESERVED


def checked_name(name: str) -> str:
    """``name`` if it can be a name of an affine object, else ``bad-affine``."""
    if not is_name(name):
        fail(
            "bad-affine",
            f"'{name}' cannot be a name in an affine expression",
            help="use lower-case letters, digits, '_' and '.', and none of the words "
            + ", ".join(sorted(RESERVED)),
        )
    return name


# -- normal form --------------------------------------------------------------------------------
def _of_atom(atom: Atom) -> Expr:
    expr = Expr(((atom, 1),))
    if expr.depth > MAX_DEPTH:
        fail("bad-affine", f"affine expression nests deeper than {MAX_DEPTH} levels")
    return expr


def _reduced_mod(body: Expr, k: int) -> Expr:
    """``body`` with every coefficient brought near zero modulo ``k`` and needless mods opened."""
    terms: list[tuple[Atom, int]] = []
    constant = body.constant
    for atom, coefficient in body.terms:
        if isinstance(atom, Mod) and coefficient * atom.modulus % k == 0:
            # c*(e mod m) = c*e - c*m*floor(e/m), and k divides c*m
            terms += [(a, c * coefficient) for a, c in atom.body.terms]
            constant += atom.body.constant * coefficient
        else:
            terms.append((atom, coefficient))
    merged = Expr.sum(terms, constant % k)
    small = Expr.sum(((a, _near_zero(c, k)) for a, c in merged.terms), merged.constant)
    opened = any(isinstance(a, Mod) and c * a.modulus % k == 0 for a, c in small.terms)
    return _reduced_mod(small, k) if opened else small


def _near_zero(coefficient: int, k: int) -> int:
    """The number of least size, sign kept where possible, that equals ``coefficient`` modulo k."""
    rest = coefficient % k if coefficient > 0 else -(-coefficient % k)
    return -rest if 2 * rest == -k else rest


def _split_multiples(expr: Expr, k: int) -> tuple[Expr, Expr]:
    """``(w, r)`` with ``expr = k*w + r``, r's constant in ``0 .. k-1``, its coefficients small."""
    whole = ((a, _towards_zero(c, k)) for a, c in expr.terms)
    rest = ((a, c - k * _towards_zero(c, k)) for a, c in expr.terms)
    return Expr.sum(whole, expr.constant // k), Expr.sum(rest, expr.constant % k)


def _towards_zero(value: int, k: int) -> int:
    return value // k if value >= 0 else -(-value // k)


def _content(expr: Expr, k: int) -> int:
    """The greatest common divisor of ``k`` and everything in ``expr``; 1 for constants."""
    return gcd(k, expr.constant, *(c for _, c in expr.terms)) if expr.terms else 1


def _exact(expr: Expr, divisor: int) -> Expr:
    return Expr.sum(((a, c // divisor) for a, c in expr.terms), expr.constant // divisor)


def _positive(k: int) -> int:
    if not 0 < k <= MAX_INTEGER:
        fail("bad-affine", f"mod and floor need a positive literal, not {k}")
    return int(k)


def _bounded(value: int) -> int:
    if abs(value) > MAX_INTEGER:
        fail("bad-affine", f"integer {value} is beyond 2^53 in an affine expression")
    return int(value)


# -- walking ------------------------------------------------------------------------------------
def _body(atom: Mod | Floor | Call) -> Expr:
    return atom.argument if isinstance(atom, Call) else atom.body


def _inside(atom: Atom) -> Expr | None:
    return None if isinstance(atom, Var) else _body(atom)


@shared
def _substituted(expr: Expr, values: tuple[tuple[str, Expr | int], ...]) -> Expr:
    """``expr`` with the names of pairs replaced by what stands beside them."""
    known = dict(values)
    total = Expr.const(expr.constant)
    for atom, coefficient in expr.terms:
        total = total + _of_substituted(atom, known) * coefficient
    return total


def _of_substituted(atom: Atom, values: Mapping[str, Expr | int]) -> Expr:
    if isinstance(atom, Var):
        return as_expr(values.get(atom.name, Expr(((atom, 1),))))
    body = _body(atom).substitute(values)
    if isinstance(atom, Mod):
        return body % atom.modulus
    if isinstance(atom, Floor):
        return body // atom.divisor
    return Expr.call(atom.function, body)


def _evaluated(
    atom: Atom, env: Mapping[str, IntLike], functions: Mapping[str, CoordinateFunction]
) -> IntLike:
    if isinstance(atom, Var):
        if atom.name not in env:
            fail("affine-unbound", f"'{atom.name}' has no value here")
        return env[atom.name]
    value = _body(atom).evaluate(env, functions)
    if isinstance(atom, Mod):
        return value % atom.modulus
    if isinstance(atom, Floor):
        return value // atom.divisor
    if atom.function not in functions:
        fail("affine-unbound", f"coordinate function '{atom.function}' is not defined here")
    return functions[atom.function](value)


# -- text ---------------------------------------------------------------------------------------
def _tight(expr: Expr) -> str:
    """``expr`` as an operand of ``mod`` or ``/``: in parentheses unless it is one plain atom."""
    plain = len(expr.terms) == 1 and not expr.constant and expr.terms[0][1] == 1
    return str(expr) if plain and not isinstance(expr.terms[0][0], Mod) else f"({expr})"


def _factor(atom: Atom, coefficient: int) -> str:
    text = f"({atom})" if isinstance(atom, Mod) and coefficient != 1 else str(atom)
    return text if abs(coefficient) == 1 else f"{abs(coefficient)}*{text}"


def _joined(parts: list[tuple[str, int]]) -> str:
    first, sign = parts[0]
    text = first if sign > 0 else f"-{first}"
    for part, sign in parts[1:]:
        text += f" + {part}" if sign > 0 else f" - {part}"
    return text
