"""Conditions on cores in the shortest form that is found.

They are composed of those of routes, guards and loops, and say much that the mesh decides or that
follows from the rest of them. Here they are worked out on all cores: a shorter condition that holds
on the same ones may stand for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.analysis.traffic.runs import FEW, run, runs_of
from meshc.ir.affine import Cond, Constraint, Expr
from meshc.ir.affine.cond import BoolArray
from meshc.ir.mesh import Mesh

_REMEMBERED = 4096
Clause = tuple[Constraint, ...]


@lru_cache(maxsize=_REMEMBERED)
def on_cores(cond: Cond, mesh: Mesh, ranges: tuple[tuple[str, int], ...] = ()) -> Cond:
    """The shortest condition found that holds on the same cores of ``mesh`` as ``cond``, whose
    other names count the places of ``ranges``; ``cond`` itself where the run decides it."""
    sizes = {name: mesh.size(name) for name in mesh.names} | dict(ranges)
    if cond.is_true or cond.is_false or not cond.free_vars <= mesh.coordinates | sizes.keys():
        return cond
    places = dict(zip(sizes, np.ix_(*map(np.arange, sizes.values())), strict=True))
    values = {
        name: value.evaluate(places) if name not in places else places[name]
        for name, value in coordinate_values(mesh).items()
        if name in cond.free_vars
    }
    values |= {name: places[name] for name, _ in ranges}
    functions = coordinate_functions(mesh)

    def holds(of: Cond) -> BoolArray:
        return np.asarray(of.evaluate(values, functions), bool)

    wanted = holds(cond)
    if wanted.all() or not wanted.any():
        return Cond.true() if wanted.all() else Cond.false()
    found = [_without_the_rest(cond, lambda of: bool((holds(of) == wanted).all()))]
    if len(cond.free_vars) == 1:
        (name,) = cond.free_vars
        here = np.asarray(values[name])
        numbers = np.unique(np.broadcast_to(here, wanted.shape)[wanted])
        found += _of_places(Expr.var(name), numbers.tolist(), int(here.max()) + 1)
    return min(found, key=_length)


def _length(cond: Cond) -> tuple[int, int]:
    """Comparisons, and divisions in them."""
    text = str(cond)
    return sum(map(len, cond.clauses)), text.count("mod") + text.count("floor")


def _without_the_rest(cond: Cond, same: Callable[[Cond], bool]) -> Cond:
    """``cond`` without the comparisons, bounds before equations, and then without the clauses that
    change nothing, and with an equation for two bounds that meet."""
    clauses = [*cond.clauses]
    for place, clause in enumerate(clauses):
        for each in sorted(clause, key=lambda one: one.relation == "="):
            left = tuple(one for one in clauses[place] if one != each)
            if same(Cond((*clauses[:place], left, *clauses[place + 1 :]))):
                clauses[place] = left
    for clause in sorted(clauses, key=len, reverse=True):
        others = [one for one in clauses if one != clause]
        if same(Cond(tuple(others))):
            clauses = others
    return Cond.any(Cond.all(map(_met, clause, [clause] * len(clause))) for clause in clauses)


def _met(bound: Constraint, clause: Clause) -> Cond:
    """``bound``, or an equation where its clause has the opposite bound as well."""
    if bound.relation == ">=" and Constraint(-bound.expr, ">=") in clause:
        return Cond.eq(bound.expr, 0)
    return Cond.of(bound)


def _of_places(place: Expr, numbers: list[int], count: int) -> Iterator[Cond]:
    """Conditions that ``place``, which is one of ``count``, is among ``numbers``: by runs of them,
    and by runs of a period in which they come back."""
    runs = runs_of(numbers)
    if len(runs) <= FEW:
        yield Cond.any(run(place, low, high, count) for low, high in runs)
    here = np.isin(np.arange(count), numbers)
    for period in range(2, count // 2 + 1) if len(runs) > 1 else ():
        within = here[:period]
        if (np.resize(within, count) == here).all():
            often = runs_of(np.flatnonzero(within).tolist())
            yield Cond.any(run(place % period, low, high, period) for low, high in often)
            return
