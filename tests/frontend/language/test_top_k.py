"""``top_k`` in the language: what it becomes, and what is refused."""

from __future__ import annotations

import pytest

from meshc.frontend.language import elaborate, parse_model
from meshc.ir.module import Module
from meshc.ir.ops.graph import TopK
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source


def module(call: str) -> Module:
    """A model that makes gates by ``call``."""
    text = f"""
model gates(L=3, E=4, X=8, F=6, count=2, on=true) {{
  param router[E, X], bias[X], other[F]
  main(x[L, E], y[L, F]) {{ return {call} }}
}}
"""
    return elaborate(parse_model(Source("gates.mesh", text), diagnostics=Diagnostics()), "main")


def chosen(call: str) -> TopK:
    (op,) = (op for op in module(call).walk() if isinstance(op, TopK))
    return op


def test_options_become_those_of_the_op() -> None:
    plain = chosen("top_k(x @ router, count)")
    assert (plain.dim, plain.count, plain.groups, plain.normalise) == ("X", 2, 1, False)
    assert len(plain.operands) == 1
    full = chosen(
        "top_k(x @ router, 3, bias, groups = 4, kept_groups = 2, group_top = 2, normalise = on)"
    )
    assert (full.groups, full.kept_groups, full.group_top, full.normalise) == (4, 2, 2, True)
    assert [str(operand) for operand in full.operands[1:]] == ["%bias"]
    assert chosen("top_k(x, 1, dim = L)").dim == "L"


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("top_k(x @ router, 9)", "bad-option", "9 are chosen of 8 elements"),
        ("top_k(x @ router, 0)", "bad-option", "count of top_k must be a positive whole number"),
        ("top_k(x @ router, 1.5)", "bad-option", "must be a positive whole number"),
        ("top_k(x @ router, 2, groups = 3)", "bad-option", "8 elements are not 3 groups"),
        ("top_k(x @ router, 3, groups = 4)", "bad-option", "3 are chosen of 2 elements"),
        (
            "top_k(x @ router, 1, groups = 2, kept_groups = 3)",
            "bad-option",
            "of 2 groups of 4, 3 are kept",
        ),
        ("top_k(x @ router, 1, group_top = 9)", "bad-option", "by their best 9"),
        ("top_k(x @ router, 1, normalise = 1)", "bad-option", "is true or false"),
        ("top_k(x @ router, 1, bias = other)", "dims-mismatch", "does not fit: top_k chooses of"),
        ("top_k(x @ router, 1, bias = 2)", "bad-operand", "'bias' of top_k is a tensor"),
        ("top_k(x @ router)", "wrong-arguments", "top_k lacks 'count'"),
        ("top_k(x, 1, dim = F)", "bad-dim", "'F' is no dim of"),
    ],
)
def test_what_cannot_be_chosen_is_refused(call: str, code: str, words: str) -> None:
    with pytest.raises(MeshcError) as caught:
        module(call)
    found = caught.value.diagnostics[0]
    assert found.code == code and words in found.message
    assert found.span is not None and found.span.line == 4
