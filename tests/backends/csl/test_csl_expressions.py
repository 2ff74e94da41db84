"""Expressions as CSL text, and what is said of that text: what it reads, calls and computes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.backends.csl.spelling.expressions import (
    Spelling,
    as_named,
    condition,
    expression,
    helpers,
    written,
    written_condition,
)
from meshc.ir.affine import Cond, Expr

X, Y, T = (Expr.var(name) for name in "xyt")
WORDS = {"mod", "floor", "and", "or", "true", "false"}


@st.composite
def expressions(draw, depth=2):
    found = Expr.const(draw(st.integers(-9, 9)))
    for name in draw(st.lists(st.sampled_from("xyt"), max_size=3, unique=True)):
        found = found + draw(st.integers(-3, 3)) * Expr.var(name)
    if depth and draw(st.booleans()):
        inner, by = draw(expressions(depth - 1)), draw(st.integers(2, 7))
        factor = draw(st.sampled_from((-2, -1, 1, 4)))
        found = found + factor * (inner % by if draw(st.booleans()) else inner // by)
    return found


@st.composite
def conditions(draw):
    def one():
        return draw(st.sampled_from((Cond.eq, Cond.ge, Cond.lt)))(draw(expressions(1)), 0)

    return Cond.any(
        Cond.all(one() for _ in range(draw(st.integers(1, 2))))
        for _ in range(draw(st.integers(1, 2)))
    )


def agrees(found):
    """What is said of a text is what its words and signs say."""
    names = re.findall(r"[a-z]+", found.text)
    assert list(found.reads) == [name for name in names if name not in WORDS]
    assert sorted(found.calls) == sorted(name for name in names if name in ("mod", "floor"))
    assert found.operations == len(re.findall(r"[<>=]=|[-+*/%<]|\band\b|\bor\b", found.text))


@given(expressions(), st.booleans())
def test_a_value_says_what_it_does(value, bounded):
    spell = Spelling(lambda name: name, {"x": 5, "y": 5, "t": 5} if bounded else {})
    agrees(written(value, spell))


@given(conditions())
def test_a_condition_says_what_it_does(cond):
    agrees(written_condition(cond, as_named()))


@given(expressions(), st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_the_text_has_the_value(value, numbers):
    """As Python evaluates it, where ``/`` is the division that CSL rounds to zero."""
    names = dict(zip("xyt", numbers, strict=True))
    text = expression(value, as_named()).replace("/", "//")
    known = {"mod": lambda a, n: a % n, "floor": lambda a, n: a // n, **names}
    assert eval(text, {"__builtins__": {}}, known) == value.evaluate(names)


@pytest.mark.parametrize(
    ("value", "called", "defined"),
    [
        (X - 1, set(), []),
        ((X + 4) % 3, set(), []),
        ((X - Y) % 3, {"mod"}, ["mod"]),
        (2 * ((X - Y) // 3) + T, {"floor"}, ["mod", "floor"]),  # which calls mod
    ],
)
def test_helpers_that_are_called_are_gathered(value, called, defined):
    spell = as_named()
    expression(value, spell)
    assert spell.helpers == called
    lines = helpers(spell.helpers)
    assert [line.split("(")[0] for line in lines if line.startswith("fn ")] == [
        f"fn {name}" for name in defined
    ]


def test_what_is_asked_for_its_cost_gathers_nothing():
    spell = as_named()
    assert written((X - Y) % 3, spell).calls == ("mod",)
    assert not spell.helpers
    condition(Cond.eq((X - Y) % 3, 0), spell)
    assert spell.helpers == {"mod"}
