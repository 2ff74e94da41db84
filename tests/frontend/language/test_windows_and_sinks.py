"""Windows and sinks of a softmax in the language: what they become and mean, and what is
refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.frontend.language import elaborate, parse_model
from meshc.interp.graph import run_graph
from meshc.ir.functions import Clamp
from meshc.ir.module import Module
from meshc.ir.ops.graph import Softmax
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source


def module(call: str) -> Module:
    text = f"""
model scores(L=5, E=4, H=2, T=5, layers=2, W=2) {{
  param sink[H], wide[H, T], lanes[T]
  main(x[L, H, T]) {{ return {call} }}
}}
"""
    return elaborate(parse_model(Source("s.mesh", text), diagnostics=Diagnostics()), "main")


def computed(call: str, **given: np.ndarray) -> np.ndarray:
    made = module(call)
    names = {p.value.name for p in made.function.params}
    (found,) = run_graph(made, {name: a for name, a in given.items() if name in names})
    return found


def test_options_become_those_of_the_op() -> None:
    made = module("softmax(x, mask = causal, window = W, every = 3, sink = sink)")
    (op,) = (op for op in made.walk() if isinstance(op, Softmax))
    assert (op.window, op.every, [str(o) for o in op.operands[1:]]) == (2, 3, ["%sink"])
    (clamp,) = (o for o in module("clamp(x, most = 2)").walk() if isinstance(o, Clamp))
    assert clamp.most == 2.0 and clamp.least < -3e38


def test_what_they_mean() -> None:
    random = np.random.default_rng(1)
    x, sink = random.normal(size=(5, 2, 5)), random.normal(size=2)
    found = computed("softmax(x, mask = causal, window = W, sink = sink)", x=x, sink=sink)
    for row in range(5):
        seen = slice(max(0, row - 1), row + 1)
        for head in range(2):
            weights = np.exp(x[row, head, seen])
            wanted = np.zeros(5)
            wanted[seen] = weights / (weights.sum() + np.exp(sink[head]))
            np.testing.assert_allclose(found[row, head], wanted, rtol=1e-12)


def test_a_sink_far_above_the_scores_takes_all() -> None:
    x, sink = np.zeros((5, 2, 5)), np.array([800.0, -800.0])
    found = computed("softmax(x, sink = sink)", x=x, sink=sink)
    np.testing.assert_allclose(found[:, 0], 0.0)
    np.testing.assert_allclose(found[:, 1], 0.2)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("softmax(x, window = 2)", "bad-option", "needs mask = causal"),
        ("softmax(x, mask = causal, window = 1.5)", "bad-option", "positive whole number"),
        ("softmax(x, mask = causal, window = -1)", "bad-option", "positive whole number"),
        ("softmax(x, mask = causal, every = 0)", "bad-option", "positive whole number"),
        ("softmax(x, mask = causal, window = 2, every = 2, but = 3)", "bad-option", "by one of"),
        ("softmax(x, mask = causal, window = 2, but = -1)", "bad-option", "positive whole number"),
        ("softmax(x, sink = wide)", "dims-mismatch", "does not fit"),
        ("softmax(x, sink = 2)", "bad-operand", "'sink' of softmax is a tensor"),
        ("rope(x, dim = T, truncate = 1)", "odd-rope", "turns pairs"),
        ("rope(x, dim = H, truncate = 1)", "bad-option", "truncate of rope is true or false"),
    ],
)
def test_what_is_refused(call: str, code: str, words: str) -> None:
    with pytest.raises(MeshcError) as caught:
        module(call)
    found = caught.value.diagnostics[0]
    assert found.code == code and words in found.message


def test_a_window_over_what_is_no_cache_is_refused_on_a_mesh(tmp_path: Path) -> None:
    text = """
model local(L=5, E=4, T=5) {
  param w[E, T]
  main(x[L, E]) { return softmax(x @ w, mask = causal, window = 2) }
}
"""
    (tmp_path / "local.mesh").write_text(text)
    with pytest.raises(MeshcError, match="a window over what is no cache"):
        meshc.compile(tmp_path / "local.mesh", mesh="2x2")
