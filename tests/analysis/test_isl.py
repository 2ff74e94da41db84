"""Proofs agree with brute force on small boxes, and witnesses are the least ones."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.proofs import isl
from meshc.ir.affine import AffineMap, Cond, Expr, Piecewise, parse_cond, parse_map, parse_piecewise
from meshc.support.diagnostics import MeshcError

SIZE = 7
BOX = parse_cond(f"0 <= y < {SIZE} and 0 <= x < {SIZE}")
RING = parse_piecewise("{ floor(p/2) : p mod 2 = 0; 7 - floor((p + 1)/2) : p mod 2 = 1 }")
FUNCTIONS = {"rank": RING, "plus_one": Piecewise.single(Expr.var("p") + 1)}
SCOPE = isl.Scope(BOX, FUNCTIONS)
GRID = {"y": np.arange(SIZE)[:, None], "x": np.arange(SIZE)[None, :]}

x, y = Expr.var("x"), Expr.var("y")
leaves = st.one_of(st.sampled_from([x, y]), st.integers(-4, 8).map(Expr.const))
exprs = st.recursive(
    leaves,
    lambda e: st.one_of(
        st.tuples(e, e).map(lambda t: t[0] + t[1]),
        st.tuples(e, st.integers(-2, 2)).map(lambda t: t[0] * t[1]),
        st.tuples(e, st.integers(1, 4)).map(lambda t: t[0] % t[1]),
        st.tuples(e, st.integers(1, 4)).map(lambda t: t[0] // t[1]),
        st.sampled_from([x, y]).map(lambda v: Expr.call("rank", v)),
        e.map(lambda v: Expr.call("plus_one", v)),
    ),
    max_leaves=4,
)
comparisons = st.tuples(st.sampled_from([Cond.eq, Cond.lt, Cond.ge, Cond.ne]), exprs, exprs).map(
    lambda t: t[0](t[1], t[2])
)
conds = st.one_of(
    comparisons,
    st.tuples(comparisons, comparisons).map(lambda t: t[0] & t[1]),
    st.tuples(comparisons, comparisons).map(lambda t: t[0] | t[1]),
)
maps = st.lists(st.tuples(st.tuples(exprs, exprs), conds), min_size=1, max_size=2).map(
    lambda pieces: AffineMap.of(("y", "x"), pieces)
)


def points(cond):
    held = np.broadcast_to(cond.evaluate(GRID, FUNCTIONS), (SIZE, SIZE))
    return [{"y": int(i), "x": int(j)} for i, j in np.argwhere(held)]


def links(relation):
    sources, targets = relation.pairs((SIZE, SIZE), {}, FUNCTIONS)
    return list(zip(map(tuple, sources.tolist()), map(tuple, targets.tolist()), strict=True))


@given(conds)
def test_point_and_count_agree_with_brute_force(cond):
    expected = points(cond)
    assert isl.find_point(cond, ("y", "x"), SCOPE) == (expected[0] if expected else None)
    assert isl.is_empty(cond, SCOPE) == (not expected)
    assert isl.count(cond, ("y", "x"), SCOPE) == len(expected)


@given(conds, conds)
def test_difference_agrees_with_brute_force(left, right):
    inside, other = points(left), points(right)
    expected = [p for p in inside if p not in other]
    found = isl.difference_point(left, right, ("y", "x"), SCOPE)
    assert found == (expected[0] if expected else None)
    assert isl.is_subset(left, right, SCOPE) == (not expected)
    assert isl.is_equal(left, right, SCOPE) == (inside == other)


@given(maps)
def test_map_properties_agree_with_brute_force(relation):
    pairs = links(relation)
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    assert (isl.two_sources(relation, SCOPE) is None) == (len(set(targets)) == len(targets))
    assert (isl.two_targets(relation, SCOPE) is None) == (len(set(sources)) == len(sources))
    missing = isl.unmapped_point(relation, Cond.true(), SCOPE)
    assert (missing is None) == (len(set(sources)) == SIZE * SIZE)


@given(maps, conds, conds)
def test_image_agrees_with_brute_force(relation, sources, targets):
    start = [tuple(p.values()) for p in points(sources)]
    image = {t for s, t in links(relation) if s in start}
    wanted = {tuple(p.values()) for p in points(targets)}
    found = isl.image_mismatch(relation, sources, targets, SCOPE)
    if image == wanted:
        assert found is None
    else:
        assert found is not None and (found["y"], found["x"]) in image ^ wanted


@given(maps, maps)
def test_map_equality_agrees_with_brute_force(left, right):
    found = isl.map_mismatch(left, right, SCOPE)
    assert (found is None) == (set(links(left)) == set(links(right)))


def test_scalars_stay_apart():
    scope = isl.Scope(parse_cond("0 <= x < 8 and 1 <= pos <= 4"))
    shift = parse_map("{ [x] -> [x - 1] : 1 <= x < pos }")
    send, recv = parse_cond("1 <= x < pos"), parse_cond("x <= pos - 2")
    assert isl.unmapped_point(shift, send, scope) is None
    assert isl.image_mismatch(shift, send, recv, scope) is None
    wrong = isl.image_mismatch(shift, send, parse_cond("x <= 2"), scope)
    assert wrong == {"x": 0, "pos": 1}


def test_multicast_with_a_range_name():
    scope = isl.Scope(parse_cond("0 <= x < 8"))
    cast = parse_map("{ [x] -> [_x] : x = 0 and 1 <= _x < 8 }")
    assert isl.image_mismatch(cast, parse_cond("x = 0"), parse_cond("x >= 1"), scope) is None
    assert isl.two_sources(cast, scope) is None
    first, second = isl.two_targets(cast, scope)
    assert (first.source, first.target, second.target) == ({"x": 0}, {"x": 1}, {"x": 2})


def test_two_senders_are_named():
    scope = isl.Scope(parse_cond("0 <= x < 8 and 0 <= i < 3"))
    found = isl.two_sources(parse_map("{ [x] -> [floor(x/2) + i] }"), scope)
    assert found == (
        isl.Link({"x": 0}, {"x": 0}, {"i": 0}),
        isl.Link({"x": 1}, {"x": 0}, {"i": 0}),
    )


def test_functions_of_functions_and_faults():
    nested = {"a": parse_piecewise("rank(p) + 1"), **FUNCTIONS}
    cond = parse_cond("a(x) = 1 and y = 0")
    assert isl.find_point(cond, ("y", "x"), isl.Scope(BOX, nested)) == {"y": 0, "x": 0}
    with pytest.raises(MeshcError, match="affine-unbound"):
        isl.is_empty(parse_cond("core(x) = 1"), SCOPE)
    with pytest.raises(MeshcError, match="defined by itself"):
        isl.is_empty(parse_cond("f(x) = 1"), isl.Scope(BOX, {"f": parse_piecewise("f(p) + 1")}))


def test_partial_functions_hold_nowhere_outside():
    scope = isl.Scope(parse_cond("0 <= x < 9"), {"f": parse_piecewise("{ 1 : p < 4; 2 : p = 6 }")})
    assert isl.count(parse_cond("f(x) >= 1"), ("x",), scope) == 5


def test_infinite_and_hard_questions_are_diagnosed():
    with pytest.raises(MeshcError, match="unbounded-set"):
        isl.count(parse_cond("x >= 0"), ("x",))
    names = [f"v{i}" for i in range(9)]
    box = " and ".join(f"0 <= {n} <= 999999 and {n} mod {7 + i} <= 3" for i, n in enumerate(names))
    total = " + ".join(f"{3 * i + 2}*({n} mod {11 + i})" for i, n in enumerate(names))
    started = time.process_time()
    with pytest.raises(MeshcError, match="proof-too-hard"):
        isl.count(parse_cond(f"{box} and ({total}) mod 9973 <= 4000"), names)
    assert time.process_time() - started < 20
    assert isl.find_point(parse_cond("x = 3")) == {"x": 3}


def test_unbounded_sets_still_have_a_point():
    found = isl.find_point(parse_cond("x <= 3 and x mod 4 = 1"))
    assert found is not None and found["x"] <= 3 and found["x"] % 4 == 1


@pytest.mark.parametrize(
    "text",
    [
        "{ [y, x] -> [x, rank(y)]; [y, x] -> [-y, plus_one(x mod 2)] : x = plus_one(rank(x)) }",
        "{ [y, x] -> [-y, 1] : x <= plus_one(rank(x)); "
        "[y, x] -> [rank(x), rank(y)] : x <= plus_one(rank(x)) }",
    ],
)
def test_sets_whose_least_point_isl_does_not_find(text):
    relation = parse_map(text)
    targets = [t for _, t in links(relation)]
    sources = [s for s, _ in links(relation)]
    assert (isl.two_sources(relation, SCOPE) is None) == (len(set(targets)) == len(targets))
    assert (isl.two_targets(relation, SCOPE) is None) == (len(set(sources)) == len(sources))
    first, second = isl.two_targets(relation, SCOPE)
    assert first.source == second.source and first.target != second.target
    for link in (first, second):
        assert (tuple(link.source.values()), tuple(link.target.values())) in links(relation)
