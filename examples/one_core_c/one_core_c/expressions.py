"""Affine expressions and conditions as C. Coordinates of the only core, and what is computed from
them, are 0."""

from __future__ import annotations

from meshc.ir.affine import Atom, Call, Cond, Constraint, Expr, Var

COORDINATES = frozenset({"x", "y", "r", "rank_x", "rank_y", "rank_r", "fold_x", "fold_y"})


def number(value: Expr) -> str:
    """``value`` as C."""
    terms = [f"{factor} * {_atom(atom)}" for atom, factor in value.terms]
    return " + ".join([*terms, str(value.constant)])


def condition(cond: Cond) -> str:
    """``cond`` as C: a disjunction of conjunctions."""
    if cond.is_true or cond.is_false:
        return str(int(cond.is_true))
    clauses = (" && ".join(map(_comparison, clause)) for clause in cond.clauses)
    return " || ".join(f"({clause})" for clause in clauses)


def _comparison(one: Constraint) -> str:
    return f"{number(one.expr)} {'==' if one.relation == '=' else '>='} 0"


def _atom(atom: Atom) -> str:
    if isinstance(atom, Var):
        return "0" if atom.name in COORDINATES else atom.name
    if isinstance(atom, Call):
        return "0"
    if hasattr(atom, "modulus"):
        return f"mod_floor({number(atom.body)}, {atom.modulus})"
    return f"div_floor({number(atom.body)}, {atom.divisor})"
