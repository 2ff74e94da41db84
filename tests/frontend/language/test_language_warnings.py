"""Warnings: legal, but surely not meant."""

from __future__ import annotations

import pytest

from meshc.frontend.language import parse_model
from meshc.frontend.language.loader import library_names, library_source
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source


def _warnings(text: str) -> list[tuple[str, str]]:
    found = Diagnostics()
    parse_model(Source("case.mesh", text), diagnostics=found)
    return [(d.code, d.message) for d in found.messages if d.severity == "warning"]


def test_unused_names_are_reported_once_each() -> None:
    text = """
    model m(E=4, F=5, eps=1e-5) {
      param w[E], u[F]
      block f(x[E], n=3) { y = x  return x }
      main(x[E], z[E]) { y = f(x)  return x * w }
    }
    """
    messages = [m for _, m in _warnings(text)]
    assert messages == [
        "'n' is never used",
        "'y' is never used",
        "'u' is never used",
        "'z' is never used",
        "'y' is never used",
        "parameter 'eps' is never used",
    ]


def test_names_used_in_a_branch_not_taken_are_used() -> None:
    text = "model m(E=4, tied=true) { param w[E] main(x[E]) { if tied { return x } return x * w } }"
    assert _warnings(text) == []


def test_statement_after_return_is_unreachable() -> None:
    text = "model m(E=4) { main(x[E]) { return x x = x + x } }"
    assert ("unreachable", "this is never reached: there is a return above it") in _warnings(text)


def test_conditional_return_is_no_end() -> None:
    text = "model m(E=4) { main(x[E]) { return x when prefill return x + x } }"
    assert _warnings(text) == []


@pytest.mark.parametrize("name", library_names())
def test_library_has_no_warnings(name: str) -> None:
    if name == "blocks":
        text = f"use {name}\nmodel m(E=4) {{ main(x[E]) {{ return x }} }}"
        assert _warnings(text) == []
    else:
        assert _warnings(library_source(name).text) == []


def test_warnings_are_not_raised() -> None:
    text = "model m(E=4, unused=3) { main(x[E]) { return x } }"
    try:
        parse_model(Source("case.mesh", text))
    except MeshcError:
        pytest.fail("a warning was raised")
