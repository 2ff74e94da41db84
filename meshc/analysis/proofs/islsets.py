"""Conditions as sets of isl, made without text, which isl takes five times as long to read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import islpy

from meshc.ir.affine import Call, Cond, Constraint, Expr, Mod, Var

SETS, CONSTRAINTS = 512, 4096
"""How many sets of conditions are kept, and of single constraints, those asked for last."""

_IN = islpy.dim_type.in_


@lru_cache(SETS)
def set_of(dims: tuple[str, ...], cond: Cond) -> Any:
    """The points over ``dims`` where ``cond`` holds, which calls no functions. isl never changes a
    set, so questions about the same guards share it."""
    space = islpy.Space.set_alloc(islpy.DEFAULT_CONTEXT, 0, len(dims))
    found = islpy.Set.empty(space)
    for clause in cond.clauses:
        points = islpy.BasicSet.universe(space)
        for constraint in clause:
            points = points.intersect(_points_of(dims, constraint))
        found = found.union(islpy.Set.from_basic_set(points))
    return found


@lru_cache(CONSTRAINTS)
def _points_of(dims: tuple[str, ...], constraint: Constraint) -> Any:
    """The points over ``dims`` where a single constraint holds, such as a bound of many guards."""
    space = islpy.Space.set_alloc(islpy.DEFAULT_CONTEXT, 0, len(dims))
    zero = islpy.Aff.zero_on_domain(islpy.LocalSpace.from_space(space))
    value = _value(constraint.expr, zero, {name: place for place, name in enumerate(dims)})
    equal = constraint.relation == "="
    return value.zero_basic_set() if equal else value.ge_basic_set(zero)


def _value(expr: Expr, zero: Any, places: Mapping[str, int]) -> Any:
    """``expr`` as an affine function of isl."""
    value = zero.set_constant_val(expr.constant)
    for atom, coefficient in expr.terms:
        assert not isinstance(atom, Call)
        if isinstance(atom, Var):
            value = value.set_coefficient_val(_IN, places[atom.name], coefficient)
        elif isinstance(atom, Mod):
            body = _value(atom.body, zero, places)
            value = value.add(body.mod_val(atom.modulus).scale_val(coefficient))
        else:
            body = _value(atom.body, zero, places)
            value = value.add(body.scale_down_val(atom.divisor).floor().scale_val(coefficient))
    return value
