"""The page of targets: its target compiles, its refusal is said, its names exist."""

import re
import types

import pytest
from pages import ROOT

import meshc
from meshc.backends import registry
from meshc.cli import main

PAGE = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
MLP = str(ROOT / "examples" / "mlp.mesh")


@pytest.fixture
def lines(monkeypatch):
    """The target of the page, as if a package had brought it."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    module = types.ModuleType("lines_of_the_page")
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    exec(compile(text, "targets.md", "exec"), vars(module))
    known = registry.found_target
    monkeypatch.setattr(
        registry, "found_target", lambda name: module.TARGET if name == "lines" else known(name)
    )
    monkeypatch.setattr(registry, "target_names", lambda: (*registry.OWN, "lines"))


def test_the_target_of_the_page_compiles(lines, tmp_path):
    made = meshc.compile(MLP, target="lines", mesh="1x1", title="all of them")
    title, text = made.files["main.txt"].split("\n", 1)
    assert title == "all of them" and text == meshc.print_module(made.modules["main"])
    words = ["--target", "lines{title=all}", "--mesh", "1x1", "-o", str(tmp_path / "out")]
    assert main(["compile", MLP, *words]) == 0
    assert (tmp_path / "out" / "main.txt").read_text().startswith("all\n")


def test_the_refusal_of_the_page_is_said(capsys):
    (command, said), *_ = re.findall(r"\$ meshc (.*)\n(error.*\n.*)\n", PAGE)
    words = command.replace("examples/mlp.mesh", MLP).split()
    assert main(words) == 1
    assert capsys.readouterr().err.strip() == said
