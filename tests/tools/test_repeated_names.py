"""The list of file names that occur more than once."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "repeated_names.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("repeated_names", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_are_listed_with_their_folders(script, tmp_path, capsys):
    for name in ("a/one.py", "b/one.py", "b/c/one.py", "a/two.py", "b/two.py", "a/three.py",
                 "a/__init__.py", "b/__init__.py", "a/two.txt"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert script.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one.py: a, b, b/c", "two.py: a, b", "2 names occur 2 times or more",
    ]  # fmt: skip
    assert list(script.repeated(tmp_path, least=3)) == ["one.py"]


def test_the_package_is_the_default(script, capsys):
    assert script.main([]) == 0
    assert "emit.py: " in capsys.readouterr().out
    assert len(script.repeated(script.PACKAGE)) <= 60
