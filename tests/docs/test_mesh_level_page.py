"""The programs of docs/mesh-level.md run, in order, and its forms are those that there are."""

import re
import shutil

from pages import ROOT, blocks, page

PAGE = "docs/mesh-level.md"


def test_programs_run(monkeypatch, tmp_path):
    """In a folder that has what the page names: examples and the files of devices."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "meshc" / "devices" / "data", tmp_path / "meshc" / "devices" / "data")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)
    assert names["pinned"].level == names["own"].level == "mesh"


def test_every_form_is_listed():
    """Names of forms in the sources stand in the table, with y and x for the axes."""
    folder = ROOT / "meshc" / "passes" / "mesh" / "forms"
    texts = [path.read_text() for path in sorted(folder.glob("*.py"))]
    found = {name for text in texts for name in re.findall(r'(?:Form|only)\(f?"(\w+)', text)}
    listed = set(re.findall(r"`(\w+?)(?:_[yx])?`", page(PAGE)))
    assert {name.rstrip("_") for name in found} - {
        "cache",
        "local",
        "joint",
        "as_entered",
    } <= listed
