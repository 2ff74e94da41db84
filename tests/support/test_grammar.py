"""The wrapper around lark: trees with spans, and what is said about text that does not fit."""

from __future__ import annotations

import pytest

from meshc.frontend.language.syntax_reader import GRAMMAR
from meshc.support.diagnostics import Diagnostic, MeshcError
from meshc.support.spans import Source


def _error(text: str) -> Diagnostic:
    with pytest.raises(MeshcError) as caught:
        GRAMMAR.parse(Source("t.mesh", text))
    (found,) = caught.value.diagnostics
    return found


def test_spans_of_leaves_and_nodes() -> None:
    tree = GRAMMAR.parse(Source("t.mesh", "# head\nblock f(x[E]) {\n  return x @\n    x  # end\n}"))
    block = tree.node(0)
    assert (block.rule, block.span.line, block.span.column) == ("block", 2, 1)
    assert block.leaf(0).text == "f"
    statement = block.node(3).node(0)
    assert (statement.rule, statement.span.length) == ("return", len("return x @"))


def test_absent_parts_are_none() -> None:
    block = GRAMMAR.parse(Source("t.mesh", "block f() { return x }")).node(0)
    assert block.maybe(1) is None
    assert block.maybe(2) is None


def test_expected_is_told_in_words() -> None:
    assert _error("model 3").notes == ("expected a name",)
    assert _error("use 3").notes == ("expected a name or a quoted text",)
    assert "a statement" in _error("model m { , }").notes[0]


def test_open_bracket_is_told_at_the_end_of_the_text() -> None:
    found = _error("model m {\n  main(x[E]) {\n    return x\n")
    assert found.message == "unexpected end of the text"
    assert found.span is not None
    assert (found.span.line, found.span.column) == (3, 13)
    assert "'{' of line 2 is still open" in found.notes


def test_brackets_in_comments_and_texts_do_not_count() -> None:
    text = "# " + "(" * 100 + '\nmodel m(a="' + "[" * 100 + '") { main(x[E]) { return x } }'
    assert GRAMMAR.parse(Source("t.mesh", text)).rule == "start"


def test_hint_for_a_known_slip() -> None:
    assert _error("model m { main(x[E]) { x = x; return x } }").help is not None


def test_limits() -> None:
    assert _error("(" * 33).code == "source-nesting"
    assert _error("x" * (GRAMMAR.max_characters + 1)).code == "source-too-large"


def test_long_token_is_cut_in_the_message() -> None:
    assert len(_error("x" * 1000).message) < 70
