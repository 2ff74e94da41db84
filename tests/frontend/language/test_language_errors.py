"""Each mistake gets its code, on its place. A '§' in a case marks where the caret must stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.frontend.language import elaborate, parse_model, phases
from meshc.support.diagnostics import Diagnostic, MeshcError, known_codes
from meshc.support.spans import Source

HEAD = 'model m(E=64, H=8, G=2, D=8, F=128, layers=2, eps=1e-5, half_word=3, kind="tanh") {\n'


def _in_main(body: str, inputs: str = "x[B, L, E]", before: str = "") -> str:
    return f"{HEAD}{before}\n  main({inputs}) {{\n{body}\n  }}\n}}\n"


def _errors(text: str) -> list[Diagnostic]:
    """The errors of parsing and of elaborating every phase."""
    with pytest.raises(MeshcError) as caught:
        model = parse_model(Source("case.mesh", text))
        for phase in phases(model):
            elaborate(model, phase, seq=16)
    return list(caught.value.diagnostics)


QK = "q[B, L, H, D], k[B, S, G, D]"
CASES = [
    # text
    ("source-syntax", "model m { main(x[B]) { x = y §^ 2 return x } }"),
    ("source-syntax", "model §7 { }"),
    ("source-syntax", "model m { main(x[B, §3]) { return x } }"),
    ("source-syntax", "model §" + "m" * 65 + " { main(x[B]) { return x } }"),
    ("source-syntax", "model m { main(x[B]) { return §return } }"),
    ("source-syntax", "model m { main(x[B]) { return x }§"),
    ("source-nesting", "model m { main(x[B]) { return " + "(" * 30 + "§(x" + ")" * 31 + " } }"),
    ("source-too-large", "§#" + "x" * 50_000),
    ("bad-model", "§block f(x[E]) { return x }"),
    ("bad-model", "model a { main(x[B]) { return x } } model §b { main(x[B]) { return x } }"),
    ("bad-model", "model §m(E=3) { param w[E] }"),
    # places and names
    ("misplaced-statement", _in_main("§weights f16 return x")),
    ("misplaced-statement", _in_main("repeat layers { x = x §return x } return x")),
    ("misplaced-statement", _in_main("repeat layers { repeat §layers { x = x } } return x")),
    (
        "misplaced-statement",
        _in_main("return f(x)", before="block f(x[E]) { §param w[E] return x }"),
    ),
    ("misplaced-statement", _in_main("return x", inputs="x[B, L, E], §n=3")),
    ("duplicate-name", "model m(E=3, §E=4) { main(x[E]) { return x } }"),
    ("duplicate-name", "model m(§prefill=3) { main(x[B]) { return x } }"),
    ("duplicate-name", "model m(§S=3) { main(x[B, L]) { return append(cache.x, x) } }"),
    ("duplicate-name", "model m { weights f16 §weights f32 main(x[B]) { return x } }"),
    ("duplicate-name", _in_main("return x @ w", before="param w[E, F], §w[F]")),
    ("duplicate-name", _in_main("return x * w", inputs="x[B, L, E], §w[E]", before="param w[E]")),
    ("duplicate-name", _in_main("return x", inputs="x[B, L, §L]")),
    ("duplicate-name", _in_main("§eps = x return x")),
    ("duplicate-name", _in_main("§w = x return x * w", before="param w[E]")),
    ("duplicate-name", _in_main("a, §a = f(x) return a", before="block f(x[E]) { return x, x }")),
    ("duplicate-name", _in_main("return x", before="block §silu(x[E]) { return x }")),
    (
        "duplicate-name",
        _in_main("return f(x)", before="block f(x[E]) { return x }\nblock §f(x[E]) { return x }"),
    ),
    ("duplicate-name", _in_main("return f(x)", before="block f(§E[E]) { return E }")),
    ("unknown-name", _in_main("return §y")),
    ("unknown-name", _in_main("return §layer.x")),
    ("unknown-name", _in_main("if eps == 1 { y = x } return §y")),
    ("unknown-name", _in_main("repeat layers { x = x + x y = x } return x + §y")),
    ("unknown-name", _in_main("return f(x)", before="param w[E]\nblock f(x[E]) { return x * §w }")),
    ("unknown-name", "model m(E=§F, F=3) { main(x[E]) { return x } }"),
    ("unknown-dim", _in_main("return x", before="param w[E, §Q]")),
    ("unknown-dim", _in_main("return transpose(x, E, §Q)")),
    ("unknown-dim", _in_main("return softmax(x, dim = §3)")),
    ("unknown-dim", _in_main("repeat §many { x = x + x } return x")),
    ("unknown-function", _in_main("return §smile(x)")),
    ("unknown-option", _in_main("return rope(x, §kind = half)")),
    ("bad-option", _in_main("return rope(x, style = §hlf)")),
    ("bad-option", _in_main("return rope(x, style = §kind)")),
    ("bad-option", _in_main("return rope(x, §theta = 0 - 1)")),
    ("bad-option", _in_main("return rms_norm(x, w, §0 - eps)", before="param w[E]")),
    ("bad-option", _in_main("return f(x, §cache = 3)", before="block f(x[E]) { return x }")),
    ("wrong-arguments", _in_main("return §rms_norm(x)")),
    ("wrong-arguments", _in_main("return silu(x, §x)")),
    ("wrong-arguments", _in_main("return silu(x, §x = x)")),
    ("wrong-arguments", _in_main("return transpose(x, §E)")),
    ("wrong-result-count", _in_main("§a, b = silu(x) return a")),
    ("wrong-result-count", _in_main("return §f(x)", before="block f(x[B, L, E]) { return x, x }")),
    # dims
    ("no-contraction", _in_main("return x §@ w", before="param w[F, E]")),
    ("no-contraction", _in_main("return x §@ transpose(x)")),
    ("no-contraction", _in_main("return x §@ x")),
    ("no-contraction", _in_main("return x §@ w", inputs="x[E]", before="param w[E]")),
    ("dims-mismatch", _in_main("return x §+ w", before="param w[F]")),
    ("dims-mismatch", _in_main("return x §* transpose(x)")),
    ("dims-mismatch", _in_main("return rms_norm(x, §w)", before="param w[F]")),
    ("dims-mismatch", _in_main("return rms_norm(x, §w)", before="param w[F, E]")),
    ("dims-mismatch", _in_main("return layer_norm(x, §w)", before="param w[L, E]")),
    ("dims-mismatch", _in_main("return embed(t, §w)", inputs="t[B, L]", before="param w[F]")),
    ("dims-mismatch", _in_main("return embed(§t, w)", inputs="t[B, E]", before="param w[F, E]")),
    ("dims-mismatch", _in_main("§y[B, L, F] = x return y")),
    (
        "dims-mismatch",
        _in_main("repeat §layers { param w[E, F] x = x @ w } return x"),
    ),
    (
        "dims-mismatch",
        _in_main("return f(x)", before="block f(x[B, L, E]) -> [B, L, F] { §return x + x }"),
    ),
    (
        "dims-mismatch",
        _in_main(
            "return f(x, §w)", before="param w[F]\nblock f(x[B, L, E], w[E]) { return x * w }"
        ),
    ),
    ("bad-dim", _in_main("return transpose(x, E, §F)")),
    ("bad-dim", _in_main("return transpose(x, E, §E)")),
    ("bad-dim", _in_main("return §transpose(x)", inputs="x[B, E]")),
    ("bad-dim", _in_main("return §rope(x)", inputs="x[B, E]")),
    ("bad-dim", _in_main("return §softmax(x, mask = causal)", inputs="x[B, E]")),
    ("bad-heads", "model m(H=9, G=2) { heads §H share G main(x[H]) { return x } }"),
    ("bad-heads", _in_main("return k §@ transpose(q)", inputs=QK, before="heads H share G")),
    # kinds and constants
    ("bad-operand", _in_main("return x §+ 1")),
    ("bad-operand", _in_main("return 2 §/ x")),
    ("bad-operand", _in_main("return x §/ x")),
    ("bad-operand", _in_main("if §x { return x } return x")),
    ("bad-operand", _in_main("return §eps")),
    ("bad-operand", _in_main("return silu(§3)")),
    ("bad-operand", _in_main("return rms_norm(x, w, §x)", before="param w[E]")),
    ("bad-operand", _in_main("if eps §== kind { return x } return x")),
    ("bad-operand", _in_main("if §eps { return x } return x")),
    ("bad-operand", _in_main("y = embed(t, w) return t §* t", "t[B, L]", "param w[F, E]")),
    ("bad-operand", _in_main("y = x * 2 return embed(§x, w)", "x[B, L]", "param w[F, E]")),
    ("bad-operand", _in_main("return f(x, §x)", before="block f(x[B, L, E], n) { return x * n }")),
    ("bad-operand", _in_main("return f(§3)", before="block f(x[B, L, E]) { return x }")),
    ("bad-operand", "model m(E=3 §@ 4) { main(x[E]) { return x } }"),
    ("bad-constant", "model m(E=§1e999) { main(x[E]) { return x } }"),
    ("bad-constant", "model m(E=§" + "9" * 30 + ") { main(x[E]) { return x } }"),
    ("bad-constant", "model m(E=999999999999 §* 999999999999) { main(x[E]) { return x } }"),
    ("bad-constant", "model m(E=§sqrt(0-4)) { main(x[E]) { return x } }"),
    ("division-by-zero", _in_main("return x §/ (H - 8)")),
    ("bad-extent", "model m(§E=0) { main(x[E]) { return x } }"),
    ("bad-extent", "model m(§E=2.5) { main(x[E]) { return x } }"),
    ("bad-extent", "model m(§E=true) { main(x[E]) { return x } }"),
    ("bad-extent", "model m(§E=99999999) { main(x[E]) { return x } }"),
    ("bad-extent", "model m(E=9999999, F=E) { param §w[E, F] main(x[E]) { return x @ w } }"),
    ("bad-extent", "model m(§n=0) { main(x[L]) { repeat n { x = x + x } return x } }"),
    ("bad-parameter", "model m(§E) { main(x[E]) { return x } }"),
    ("bad-dtype", "model m { weights §f8 main(x[B]) { return x } }"),
    ("bad-dtype", 'model m(d="f8") { weights §d main(x[B]) { return x } }'),
    # control
    ("bad-repeat", _in_main("repeat §layers { y = x + x } return x")),
    ("missing-return", "model m { §main(x[B]) { y = x + x } }"),
    ("missing-return", _in_main("return f(x)", before="block §f(x[B]) { y = x + x }")),
    ("missing-return", "model m { §main(x[B]) { return x when prefill } }"),
    ("recursive-block", _in_main("return f(x)", before="block §f(x[B, L, E]) { return f(x) }")),
    (
        "recursive-block",
        _in_main(
            "return f(x)",
            before="block §f(x[E]) { return g(x) }\nblock g(x[E]) { return f(x) }",
        ),
    ),
    # caches
    ("not-a-cache", _in_main("return append(§x, x)")),
    ("not-a-cache", _in_main("k = append(cache.k, x) return x @ §cache.k")),
    ("not-a-cache", _in_main("return append(cache.k, §x)", inputs="x[B, E]")),
    ("cache-reuse", _in_main("k = append(cache.k, x) return k + §append(cache.k, x)")),
    ("odd-rope", "model m(E=63) { main(x[B, L, E]) { return §rope(x) } }"),
    ("odd-rope", _in_main("return rope(x, §rotated = 3)", inputs="x[B, L, E]")),
    ("odd-rope", _in_main("return rope(x, §rotated = 96)", inputs="x[B, L, E]")),
    (
        "rope-length",
        _in_main(
            "return §rope(x, scaling = dynamic, original_max_position = 2)", inputs="x[B, L, E]"
        ),
    ),
    (
        "bad-option",
        _in_main('return rope(x, scaling = longrope, §short_factors = "1 2")', inputs="x[B, L, E]"),
    ),
]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("code", "marked"), CASES, ids=[f"{c}-{i}" for i, (c, _) in enumerate(CASES)]
)
def test_mistake_is_placed(code: str, marked: str) -> None:
    before = marked[: marked.index("§")]
    found = _errors(marked.replace("§", ""))
    wanted = (code, before.count("\n") + 1, len(before) - before.rfind("\n"))
    spans = [(d.code, d.span.line, d.span.column) for d in found if d.span]
    assert wanted in spans
    assert len(found) == 1
    assert "\n" in found[0].render()


def test_every_code_has_a_case() -> None:
    elsewhere = {
        "model-too-large",
        "bad-use",
        "bad-phase",
        "source-not-utf8",
        "source-unreadable",
        "unreachable",
        "unused-name",
    }
    table = Path(__file__).parents[3] / "meshc" / "support" / "codes" / "language.toml"
    text = table.read_text(encoding="utf-8")
    declared = {c for c in known_codes() if f"[{c}]" in text}
    assert declared == {code for code, _ in CASES} | elsewhere


def test_errors_of_different_statements_come_together() -> None:
    body = "a = x + w\n b = rms_norm(x, w)\n c = a @ b\n d = x @ x\n return x"
    found = _errors(_in_main(body, before="param w[F]"))
    assert [d.code for d in found] == ["dims-mismatch", "dims-mismatch", "no-contraction"]


def test_error_in_a_block_tells_the_calls() -> None:
    blocks = "block f(x[B, L, E]) { return g(x) }\nblock g(x[B, L, E]) { return x + 1 }"
    (found,) = _errors(_in_main("return f(x)", before=blocks))
    assert [note.split(",")[0] for note in found.notes] == ["in block 'g'", "in block 'f'"]


def test_one_mistake_in_a_block_called_twice_is_one_error() -> None:
    found = _errors(_in_main("return f(x) + f(x)", before="block f(x[B, L, E]) { return x + 1 }"))
    assert len(found) == 1


def test_transpose_is_suggested_by_name() -> None:
    (found,) = _errors(_in_main("return q @ k", inputs="q[B, L, H, D], k[B, S, H, D]"))
    assert found.help == "transpose the right side: transpose(k)"
    (found,) = _errors(_in_main("return x @ w", before="param w[F, E, H]"))
    assert found.help == "transpose the right side: transpose(w, F, E)"


def test_similar_name_is_suggested() -> None:
    (found,) = _errors(_in_main("attention = x\n return atention"))
    assert found.help == "did you mean 'attention'?"


def test_errors_have_an_end() -> None:
    found = _errors(_in_main("".join(f"y{i} = z{i}\n" for i in range(1500)) + "return x"))
    assert 100 <= len(found) <= 101


def test_blocks_that_multiply_are_stopped() -> None:
    blocks = "".join(
        f"block b{i}(x[B, L, E]) {{ return b{i + 1}(x) + b{i + 1}(x) }}\n" for i in range(24)
    )
    blocks += "block b24(x[B, L, E]) { return x + x }"
    (found,) = _errors(_in_main("return b0(x)", before=blocks))
    assert found.code == "model-too-large"


def test_blocks_that_nest_deeply_are_stopped() -> None:
    blocks = "".join(f"block b{i}(x[B, L, E]) {{ return b{i + 1}(x) }}\n" for i in range(300))
    blocks += "block b300(x[B, L, E]) { return x + x }"
    (found,) = _errors(_in_main("return b0(x)", before=blocks))
    assert found.code == "source-nesting"
