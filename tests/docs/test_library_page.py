"""The programs of docs/library.md run, one after the other, and name what there is."""

import re
from pathlib import Path

import meshc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_programs_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {}
    for block in BLOCKS:
        exec(compile(block, "library.md", "exec"), names)
    shown = capsys.readouterr().out
    said = re.search(r"print\(compiled\)  # (.*)", PAGE)[1]
    assert said.partition(";")[0] in shown
    assert names["result"].shape == (16, 64)
    assert len(names["answer"].tokens) == 4


def test_stable_names_are_listed():
    listed = PAGE[PAGE.index("## Names") :]
    passes = {cls.__name__ for cls in meshc.PASSES}
    for name in set(meshc.__all__) - passes - {"__version__"}:
        assert f"`{name}`" in listed, name
