"""Affine objects: the canonical texts people read, and what bad text says."""

import time

import numpy as np
import pytest

from meshc.ir.affine import (
    Cond,
    Expr,
    Piecewise,
    parse_cond,
    parse_expr,
    parse_map,
    parse_piecewise,
)
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source, Span

x, y = Expr.var("x"), Expr.var("y")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("y - 1 + x + x", "2*x + y - 1"),
        ("(x+1) % 2", "(x + 1) mod 2"),
        ("floor((x + 3)/2)", "floor((x + 1)/2) + 1"),
        ("floor((7 - x)/4)", "floor((3 - x)/4) + 1"),
        ("5 - x // 2", "5 - floor(x/2)"),
        ("-x mod 3", "-(x mod 3)"),
        ("(-x) mod 2", "x mod 2"),
        ("(2*x) mod 4", "2*(x mod 2)"),
        ("(x mod 6) mod 3", "x mod 3"),
        ("floor(floor(x/2)/3)", "floor(x/6)"),
        ("floor((4*x + y)/4)", "x + floor(y/4)"),
        ("x mod 1 + floor(y/1)", "y"),
        ("core_x(floor(k/4)) - 1", "core_x(floor(k/4)) - 1"),
        ("f(x) + floor(x/2) + x mod 2 + x", "x + x mod 2 + floor(x/2) + f(x)"),
        ("x - x", "0"),
    ],
)
def test_expressions_have_one_text(text, canonical):
    assert str(parse_expr(text)) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0 <= y < 4", "y >= 0 and y <= 3"),
        ("not (pos <= x)", "x < pos"),
        ("x mod 2 != 0", "x mod 2 = 1"),
        ("(x + 1) mod 2 = 0", "x mod 2 = 1"),
        ("x mod 2 >= 2", "false"),
        ("2*x >= 3", "x >= 2"),
        ("2*x = 3", "false"),
        ("x != 3", "x >= 4 or x <= 2"),
        ("x = 1 or x = 1 and y = 2", "x = 1"),
        ("(x = 1 or y = 1) and x = 2 and not false", "x = 1 and x = 2 or x = 2 and y = 1"),
        ("x + 1 = y", "x = y - 1"),
        ("x - y + 3 >= 0", "y <= x + 3"),
    ],
)
def test_conditions_have_one_text(text, canonical):
    assert str(parse_cond(text)) == canonical


def test_piecewise_takes_the_first_piece_that_holds():
    function = parse_piecewise("{ 0 : x >= 5; floor(x/2) : x mod 2 = 0; 5 - floor(x/2) : x >= 0 }")
    assert [function.evaluate({"x": i}) for i in range(7)] == [0, 5, 1, 4, 2, 0, 0]
    assert function(np.arange(7)).tolist() == [0, 5, 1, 4, 2, 0, 0]


def test_piecewise_outside_its_pieces():
    function = parse_piecewise("{ 1 : x = 0 }")
    assert function.evaluate({"x": np.arange(2)}, default=-1).tolist() == [1, -1]
    for point in (3, np.arange(2)):
        with pytest.raises(MeshcError, match="affine-undefined"):
            function.evaluate({"x": point})


def test_single_piece_prints_as_its_expression():
    assert str(Piecewise.single(x + 1)) == "x + 1"
    assert parse_piecewise("{ x + 1 : true }") == Piecewise.single(x + 1)


def test_map_pairs_of_a_shift_and_a_multicast():
    shift = parse_map("{ [y, x] -> [y, x - 1] : x >= 1 }")
    source, target = shift.pairs((2, 3))
    assert source.tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert (target == source - [0, 1]).all()
    cast = parse_map("{ [y, x] -> [y, _x] : x = 0 and 1 <= _x < 3 }")
    assert [t.tolist() for t in cast.pairs((1, 4))] == [[[0, 0], [0, 0]], [[0, 1], [0, 2]]]


def test_map_scalars_and_substitution():
    relation = parse_map("{ [x] -> [x + n] : x < pos }")
    assert relation.free_vars == {"n", "pos"}
    assert str(relation.substitute({"n": 2, "pos": 4})) == "{ [x] -> [x + 2] : x <= 3 }"


def test_empty_map_round_trips():
    empty = parse_map("{ [y, x] }")
    assert str(empty) == "{ [y, x] }" and not empty.pieces


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x *",
        "x * y",
        "x mod 0",
        "x mod y",
        "x / 2",
        "floor(x + 1/2)",
        "floor(x)",
        "X + 1",
        "mod 3",
        "x ? 1",
        "(x",
        "x)",
        "1234567890123456789012",
        "900000000000000 * 900000000000000",
        "(" * 5000 + "x",
        "floor(" * 200 + "x",
        "x" + " mod 7 + f(1)" * 10 + "+ (" * 40,
        "x" + " // 2 + 1" * 2000,
        "x = 1",
        "é",
    ],
)
def test_bad_expressions_are_diagnosed(text):
    started = time.process_time()
    with pytest.raises(MeshcError) as caught:
        parse_expr(text)
    assert {d.code for d in caught.value.diagnostics} == {"bad-affine"}
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", ["x", "x = ", "x < y z", "not x", "x = 1 and", "(x = 1) + 2 = 3"])
def test_bad_conditions_are_diagnosed(text):
    with pytest.raises(MeshcError, match="bad-affine"):
        parse_cond(text)


@pytest.mark.parametrize(
    "text",
    [
        "{ [x] -> [x] ",
        "{ [x] -> [x]; [y] -> [y] }",
        "{ [x, x] -> [x] }",
        "{ [x] -> [x]; [x] -> [x, x] : x = 1 }",
        "{ [x] -> [_a + 1] }",
        "{ [x] -> [x] : _a = 1 }",
        "{ [x + 1] -> [x] }",
        "[x] -> [x]",
    ],
)
def test_bad_maps_are_diagnosed(text):
    with pytest.raises(MeshcError, match="bad-affine"):
        parse_map(text)


def test_hostile_conditions_end_quickly():
    started = time.process_time()
    distinct = " and ".join(f"(x = {i} or y = {i})" for i in range(200))
    with pytest.raises(MeshcError, match="alternatives"):
        parse_cond(distinct)
    assert parse_cond(" and ".join(f"x >= {i}" for i in range(600))).clauses
    assert time.process_time() - started < 10  # minutes without the limits


def test_deep_floors_are_refused_when_built():
    expr = x
    with pytest.raises(MeshcError, match="deeper"):
        for _ in range(100):
            expr = (expr // 3 + y) // 2 + expr % 7


def test_the_message_points_into_the_source():
    source = Source("m.meshir", 'tile.wait {when = "x = @"}')
    with pytest.raises(MeshcError) as caught:
        parse_cond("x = @", Span(source, 1, 20))
    span = caught.value.diagnostics[0].span
    assert span is not None and (span.line, span.column) == (1, 24)


def test_unknown_names_are_diagnosed():
    with pytest.raises(MeshcError, match="affine-unbound"):
        (x + y).evaluate({"x": 1})
    with pytest.raises(MeshcError, match="affine-unbound"):
        Expr.call("core_x", x).evaluate({"x": 1})


def test_condition_constructors():
    assert str(Cond.between(1, x, y)) == "x >= 1 and x < y"
    assert Cond.all([]).is_true and Cond.any([]).is_false and (~Cond.true()).is_false


def test_a_map_without_pieces_has_no_pairs() -> None:
    nothing = parse_map("{ [y, x] -> [y, x - 1] : x mod 1 = 1 }")
    assert not nothing.pieces
    sources, targets = nothing.pairs((3, 4))
    assert sources.shape == targets.shape == (0, 2)


def test_integers_of_numpy_become_plain_ones():
    """Results are shared between equal operands, whatever kind of integer made them."""
    x = Expr.var("only_here")  # nothing has made results of it before
    made = x * np.int64(3) + np.int64(5)
    assert made is x * 3 + 5
    found = [made, x % np.int64(4), (x + 2) // np.int64(7)]
    inside = [part for expr in found for part in (expr.constant, *(c for _, c in expr.terms))]
    assert {type(part) for part in inside} == {int}
    assert type((x % 4).terms[0][0].modulus) is int
    assert type(((x + 2) // 7).terms[0][0].divisor) is int


def test_equal_objects_hash_alike():
    left, right = Expr((x + y).terms), x + y
    assert left is not right and left == right and hash(left) == hash(right)
    one, other = Cond(Cond.ge(x, y).clauses), Cond.ge(x, y)
    assert one is not other and one == other and hash(one) == hash(other)
