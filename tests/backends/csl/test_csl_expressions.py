"""Affine expressions as those of CSL: their text, and what a core does to work them out."""

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
)
from meshc.backends.csl.tree.printed import spelled
from meshc.backends.csl.tree.syntax_tree import Call, Infix, Name, Prefix
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
    """What is in a tree is what the words and signs of its text say."""
    text, nodes = spelled(found), [*found.walk()]
    names = re.findall(r"[a-z]+", text)
    assert [node.text for node in nodes if isinstance(node, Name)] == [
        name for name in names if name not in WORDS
    ]
    called = [node.function for node in nodes if isinstance(node, Call)]
    assert called == [name for name in names if name in ("mod", "floor")]
    operations = [node for node in nodes if isinstance(node, (Infix, Prefix))]
    assert len(operations) == len(re.findall(r"[<>=]=|[-+*/%<]|\band\b|\bor\b", text))


@given(expressions(), st.booleans())
def test_a_value_says_what_it_does(value, bounded):
    spell = Spelling(lambda name: name, {"x": 5, "y": 5, "t": 5} if bounded else {})
    agrees(expression(value, spell))


@given(conditions())
def test_a_condition_says_what_it_does(cond):
    agrees(condition(cond, as_named()))


@given(expressions(), st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_the_text_has_the_value(value, numbers):
    """As Python evaluates it, where ``/`` is the division that CSL rounds to zero."""
    names = dict(zip("xyt", numbers, strict=True))
    text = spelled(expression(value, as_named())).replace("/", "//")
    known = {"mod": lambda a, n: a % n, "floor": lambda a, n: a // n, **names}
    assert eval(text, {"__builtins__": {}}, known) == value.evaluate(names)


@pytest.mark.parametrize(
    ("value", "defined"),
    [
        (X - 1, []),
        ((X + 4) % 3, []),
        ((X - Y) % 3, ["mod"]),
        (2 * ((X - Y) // 3) + T, ["mod", "floor"]),  # which calls mod
    ],
)
def test_helpers_that_are_called_are_defined(value, defined):
    assert [each.name for each in helpers([expression(value, as_named())])] == defined
