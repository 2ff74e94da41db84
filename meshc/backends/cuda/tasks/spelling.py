"""Affine expressions and conditions as C, with what is known of the ranges of their names, and
indices of arrays as such expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from meshc.ir.affine import Cond, Expr
from meshc.ir.affine.cond import Constraint
from meshc.ir.affine.expr import Atom, Call, Floor, Mod, Var

Ranges = Mapping[str, tuple[int, int]]
"""The least and the most that a name can be."""


def flattened(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The place of an element among all of an array of ``shape``, row by row."""
    found = Expr.const(0)
    for extent, one in zip(shape, index, strict=True):
        found = found * extent + one
    return found


def unflattened(place: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """The index of the element at ``place`` of an array of ``shape``."""
    found, step = [], prod(shape)
    for number, extent in enumerate(shape):
        inner = place % step if number else place
        step //= extent
        found.append(inner // step)
    return tuple(found)


def bounds(expr: Expr, ranges: Ranges) -> tuple[int, int]:
    """The least and the most that ``expr`` can be."""
    low = high = expr.constant
    for atom, factor in expr.terms:
        ends = [factor * end for end in _bounds(atom, ranges)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _bounds(atom: Atom, ranges: Ranges) -> tuple[int, int]:
    match atom:
        case Var(name):
            return ranges[name]
        case Mod(body, modulus):
            low, high = bounds(body, ranges)
            return (low, high) if low >= 0 and high < modulus else (0, modulus - 1)
        case Floor(body, divisor):
            low, high = bounds(body, ranges)
            return low // divisor, high // divisor
        case Call():
            raise ValueError(f"{atom} is known to meshes alone")


def simplified(expr: Expr, ranges: Ranges) -> Expr:
    """``expr`` where nothing is divided that is small enough."""
    found = Expr.const(expr.constant)
    for atom, factor in expr.terms:
        found += _simplified(atom, ranges) * factor
    return _joined(found)


def _joined(expr: Expr) -> Expr:
    """``expr`` where remainders and quotients of one division are put together again."""
    factors = dict(expr.terms)
    for atom, factor in expr.terms:
        if isinstance(atom, Mod):
            whole = Floor(atom.body, atom.modulus)
            if factors.get(whole) == factor * atom.modulus:
                rest = Expr.sum(
                    ((a, f) for a, f in expr.terms if a not in (atom, whole)), expr.constant
                )
                return _joined(rest + atom.body * factor)
    return expr


def _simplified(atom: Atom, ranges: Ranges) -> Expr:
    match atom:
        case Mod(body, modulus):
            body = _less_multiples(simplified(body, ranges), modulus, ranges)
            low, high = bounds(body, ranges)
            return body if low >= 0 and high < modulus else body % modulus
        case Floor(body, divisor):
            body = simplified(body, ranges)
            low, high = bounds(body, ranges)
            if low // divisor == high // divisor:
                return Expr.const(low // divisor)
            rest = _less_multiples(body, divisor, ranges)
            if bounds(rest, ranges)[0] >= 0 and bounds(rest, ranges)[1] < divisor:
                return (body - rest) // divisor
            return body // divisor
        case Var(name) if ranges[name][0] == ranges[name][1]:
            return Expr.const(ranges[name][0])
    return Expr(((atom, 1),))


def _less_multiples(body: Expr, divisor: int, ranges: Ranges) -> Expr:
    """``body`` without the terms that ``divisor`` divides."""
    return Expr.sum(((a, f) for a, f in body.terms if f % divisor), body.constant % divisor)


def spelled(expr: Expr, ranges: Ranges) -> str:
    """``expr`` in C. Raises ValueError where something is divided that may be negative."""
    return _spelled(simplified(expr, ranges), ranges)


def _spelled(expr: Expr, ranges: Ranges) -> str:
    positive = [(a, f) for a, f in expr.terms if f > 0]
    negative = [(a, f) for a, f in expr.terms if f < 0]
    text = " + ".join(_term(a, f, ranges) for a, f in positive)
    if expr.constant > 0 or not (text or negative):
        text = f"{text} + {expr.constant}" if text else str(expr.constant)
    elif expr.constant < 0:
        text = f"{text} - {-expr.constant}" if text else str(expr.constant)
    for atom, factor in negative:
        text += f" - {_term(atom, -factor, ranges)}" if text else f"-{_term(atom, -factor, ranges)}"
    return text


def _term(atom: Atom, factor: int, ranges: Ranges) -> str:
    if isinstance(atom, Var):
        text = atom.name
    else:
        assert isinstance(atom, (Mod, Floor))
        if bounds(atom.body, ranges)[0] < 0:
            raise ValueError(f"{atom} may divide a negative number")
        body = _spelled(atom.body, ranges)
        inner = f"({body})" if len(atom.body.terms) > 1 or atom.body.constant else body
        sign, by = ("%", atom.modulus) if isinstance(atom, Mod) else ("/", atom.divisor)
        text = f"{inner} {sign} {by}"
        if factor != 1:
            text = f"({text})"
    return text if factor == 1 else f"{factor} * {text}"


def condition(cond: Cond, ranges: Ranges) -> str:
    """``cond`` in C."""
    clauses = [_clause(clause, ranges) for clause in cond.clauses]
    if len(clauses) == 1:
        return clauses[0]
    return " || ".join(f"({c})" if "&&" in c else c for c in clauses) or "false"


def _clause(clause: Sequence[Constraint], ranges: Ranges) -> str:
    return " && ".join(_comparison(one, ranges) for one in clause) or "true"


def _comparison(one: Constraint, ranges: Ranges) -> str:
    expr, sign = one.expr, "==" if one.relation == "=" else ">="
    left = Expr(tuple((a, f) for a, f in expr.terms if f > 0), max(expr.constant, 0))
    return f"{spelled(left, ranges)} {sign} {spelled(left - expr, ranges)}"
