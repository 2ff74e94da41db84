"""Every example of docs/language.md and of examples/ is a model without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshc.frontend.language import elaborate, load_model, parse_model, phases
from meshc.frontend.language.builtin_signatures import BUILTINS
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```mesh(?: error=(\S+))?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SOUND = [text for code, text in EXAMPLES if not code]
BROKEN = [(code, text) for code, text in EXAMPLES if code]


def _title(text: str) -> str:
    match = re.search(r"model (\w+)", text)
    assert match is not None
    return match[1]


def test_page_has_examples() -> None:
    assert len(SOUND) >= 15
    assert BROKEN


@pytest.mark.parametrize("text", SOUND, ids=_title)
def test_documented_example_elaborates(text: str) -> None:
    found = Diagnostics()
    model = parse_model(Source("docs/language.md", text), diagnostics=found)
    assert found.messages == []
    for phase in phases(model):
        module = elaborate(model, phase, seq=8)
        printed = print_module(module)
        assert print_module(parse_module(Source("printed", printed))) == printed


@pytest.mark.parametrize(("code", "text"), BROKEN, ids=[c for c, _ in BROKEN])
def test_documented_mistake_is_reported(code: str, text: str) -> None:
    with pytest.raises(MeshcError) as caught:
        model = parse_model(Source("docs/language.md", text))
        elaborate(model, phases(model)[0], seq=8)
    assert [d.code for d in caught.value.diagnostics] == [code]


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("*.mesh")))
def test_example_file_elaborates(name: str) -> None:
    found = Diagnostics()
    model = load_model(ROOT / "examples" / name, found)
    assert found.messages == []
    for phase in phases(model):
        assert elaborate(model, phase, seq=8).function.body.ops


def test_page_names_every_function_and_option() -> None:
    for signature in BUILTINS.values():
        assert f"`{signature.name}(" in PAGE
        for formal in signature.formals:
            if not formal.required and formal.kind != "dim":
                assert formal.name in PAGE
            for word in formal.words:
                assert word in PAGE
