"""Trees of CSL as text."""

import operator
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshc.backends.csl.tree.printed import WIDTH, lines_of, spelled, wrapped
from meshc.backends.csl.tree.syntax_tree import (
    Became,
    Return,
    as_expression,
    assign,
    function,
    infix,
    when,
)

MEANINGS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


def test_a_short_line_stays():
    assert wrapped("    @fmovs(a, b); // copy") == ["    @fmovs(a, b); // copy"]


def test_a_long_comment_breaks_between_words():
    words = ", ".join(f"receive on ring_{n}" for n in range(12))
    lines = wrapped(f"    // {words}")
    assert len(lines) > 1
    assert all(len(line) <= WIDTH and line.startswith("    // ") for line in lines)
    assert " ".join(line.removeprefix("    // ") for line in lines) == words


def test_a_comment_behind_long_code_goes_before_it():
    arguments = ", ".join(f"argument_{n}" for n in range(12))
    first, *rest = wrapped(f"    call({arguments}); // what it came from")
    assert first == "    // what it came from"
    assert rest[0] == "    call(" and rest[-1] == "    );"
    assert "".join(line.strip() for line in rest) == f"call({arguments.replace(', ', ',')});"


@st.composite
def sums_and_tests(draw, depth=3):
    """An expression of small numbers and its value."""
    if not depth or draw(st.integers(0, 3)) == 0:
        number = draw(st.integers(1, 9))
        return as_expression(number), number
    left, first = draw(sums_and_tests(depth - 1))
    if draw(st.integers(0, 4)) == 0:
        return -left, -first
    right, second = draw(sums_and_tests(depth - 1))
    operator = draw(st.sampled_from(sorted(MEANINGS)))
    assume(second or operator not in "/%")
    return infix(left, operator, right), MEANINGS[operator](first, second)


@given(sums_and_tests())
def test_parentheses_stand_where_operators_need_them(case):
    """The operators of CSL bind as those of Python do, of which the tests stand in no other."""
    tree, value = case
    text = re.sub(r"(?<![<>])/", "//", spelled(tree))
    assert eval(text, {"__builtins__": {}}) == value


def test_what_is_equal_is_one_node():
    body = [assign("x", 1), when(infix("x", "<", 2), [Return()])]
    assert function("one", ["x: i16"], body) == function("one", ["x: i16"], list(body))
    assert len({as_expression("x"), as_expression("x"), as_expression(1)}) == 2


def test_a_name_is_one_word():
    with pytest.raises(AssertionError, match="no name of CSL"):
        as_expression("x + 1")


def test_an_op_has_the_lines_that_it_became():
    op = object()
    body = (assign("x", 1), when(infix("x", "<", 2), [Return()]))
    lines = [*lines_of([Became(op, body, "what it says"), Return()])]
    assert [line.text for line in lines] == [
        "x = 1; // what it says",
        "if (x < 2) {",
        "    return;",
        "}",
        "return;",
    ]
    assert [line.op is op for line in lines] == [True] * 4 + [False]
