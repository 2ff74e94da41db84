"""Affine objects: text round trips, and every operation keeps the meaning (hypothesis)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.ir.affine import (
    AffineMap,
    Cond,
    Expr,
    Piecewise,
    parse_cond,
    parse_expr,
    parse_map,
    parse_piecewise,
)

NAMES = ("x", "y", "pos", "l0.i")
small = st.integers(-9, 9)
moduli = st.integers(1, 9)
points = st.fixed_dictionaries({n: st.integers(-40, 40) for n in NAMES})
leaves = st.one_of(small.map(Expr.const), st.sampled_from(NAMES).map(Expr.var))
exprs = st.recursive(
    leaves,
    lambda e: st.one_of(
        st.tuples(e, e).map(lambda t: t[0] + t[1]),
        st.tuples(e, e).map(lambda t: t[0] - t[1]),
        st.tuples(e, small).map(lambda t: t[0] * t[1]),
        st.tuples(e, moduli).map(lambda t: t[0] % t[1]),
        st.tuples(e, moduli).map(lambda t: t[0] // t[1]),
        e.map(lambda x: Expr.call("twice", x)),
    ),
    max_leaves=6,
)
comparisons = st.tuples(
    st.sampled_from([Cond.eq, Cond.ne, Cond.lt, Cond.le, Cond.gt, Cond.ge]), exprs, exprs
).map(lambda t: t[0](t[1], t[2]))
conds = st.recursive(
    comparisons,
    lambda c: st.one_of(
        st.tuples(c, c).map(lambda t: t[0] & t[1]),
        st.tuples(c, c).map(lambda t: t[0] | t[1]),
    ),
    max_leaves=3,
)
FUNCTIONS = {"twice": lambda v: 2 * v}


def value(expr, point):
    return expr.evaluate(point, FUNCTIONS)


@given(exprs)
def test_expr_text_round_trips(expr):
    assert parse_expr(str(expr)) == expr
    assert str(parse_expr(str(expr))) == str(expr)


@given(exprs, exprs, small, moduli, points)
def test_arithmetic_is_that_of_integers(a, b, factor, k, point):
    va, vb = value(a, point), value(b, point)
    assert value(a + b, point) == va + vb
    assert value(a - b, point) == va - vb
    assert value(a * factor, point) == va * factor
    assert value(a % k, point) == va % k
    assert value(a // k, point) == va // k
    assert value(3 - a, point) == 3 - va


@given(exprs, exprs, points)
def test_substitution_is_evaluation_of_the_substituted(a, b, point):
    assert value(a.substitute({"x": b}), point) == value(a, {**point, "x": value(b, point)})


@given(conds)
def test_cond_text_round_trips(cond):
    assert parse_cond(str(cond)) == cond
    assert str(parse_cond(str(cond))) == str(cond)


@given(exprs, exprs, points)
def test_comparisons_mean_what_they_say(a, b, point):
    va, vb = value(a, point), value(b, point)
    assert Cond.eq(a, b).evaluate(point, FUNCTIONS) == (va == vb)
    assert Cond.ne(a, b).evaluate(point, FUNCTIONS) == (va != vb)
    assert Cond.lt(a, b).evaluate(point, FUNCTIONS) == (va < vb)
    assert Cond.ge(a, b).evaluate(point, FUNCTIONS) == (va >= vb)


@settings(max_examples=60)
@given(conds, conds, points)
def test_connectives_mean_what_they_say(a, b, point):
    ta, tb = a.evaluate(point, FUNCTIONS), b.evaluate(point, FUNCTIONS)
    assert (a & b).evaluate(point, FUNCTIONS) == (ta and tb)
    assert (a | b).evaluate(point, FUNCTIONS) == (ta or tb)
    assert (~a).evaluate(point, FUNCTIONS) == (not ta)


@given(conds, exprs, points)
def test_condition_substitution(cond, expr, point):
    moved = {**point, "x": value(expr, point)}
    after = cond.substitute({"x": expr})
    assert after.evaluate(point, FUNCTIONS) == cond.evaluate(moved, FUNCTIONS)


@given(st.lists(st.tuples(conds, exprs), max_size=3).map(Piecewise.of))
def test_piecewise_text_round_trips(function):
    assert parse_piecewise(str(function)) == function


@given(st.lists(st.tuples(st.tuples(exprs, exprs), conds), max_size=3))
def test_map_text_round_trips(pieces):
    relation = AffineMap.of(("y", "x"), pieces)
    assert parse_map(str(relation)) == relation


@given(conds, exprs)
def test_arrays_agree_with_points(cond, expr):
    grid = {"y": np.arange(-3, 4)[:, None], "x": np.arange(-2, 6)[None, :], "pos": 5, "l0.i": 1}
    shape = (7, 8)
    truth = np.broadcast_to(cond.evaluate(grid, FUNCTIONS), shape)
    values = np.broadcast_to(expr.evaluate(grid, FUNCTIONS), shape)
    for (i, j), held in np.ndenumerate(truth):
        point = {**grid, "y": i - 3, "x": j - 2}
        assert held == cond.evaluate(point, FUNCTIONS)
        assert values[i, j] == value(expr, point)
