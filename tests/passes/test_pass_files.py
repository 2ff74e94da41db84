"""Every pass file: the pipeline turns the input into the expected text, and computes the same."""

import inspect
import re
from pathlib import Path

import pytest

import meshc
from meshc.testing import PassCase

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*/*.meshir"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in CASES]


@pytest.mark.every_case
@pytest.mark.parametrize("path", CASES, ids=NAMES)
def test_pass_file(path, check_pass):
    check_pass(path)


def test_folders_are_named_after_passes():
    known = {cls.NAME.replace("-", "_") for cls in meshc.PASSES}
    assert {path.parent.name for path in CASES} <= known


@pytest.mark.every_case
@pytest.mark.parametrize("cls", meshc.PASSES, ids=lambda cls: cls.NAME)
def test_docstring_example_is_what_happens(cls):
    """The lines of Before:: and After:: in the docstring stand in the case ``example``."""
    doc = inspect.getdoc(cls)
    match = re.search(r"Before::\n\n(.*?)\n\nAfter::\n\n((?:    [^\n]*\n?)+)", doc, re.DOTALL)
    assert match, f"{cls.NAME} has no Before:: and After:: in its docstring"
    case = PassCase(HERE / cls.NAME.replace("-", "_") / "example.meshir")
    assert case.fact("passes").split("{")[0] == cls.NAME
    assert shows(case.given, match[1])
    assert shows(case.expected, match[2])
    # An example that changes nothing would show nothing.
    assert not shows(case.given, match[2])


def shows(text, fragment):
    """Whether the lines of ``fragment`` are parts of lines of ``text``, in that order.

    ``...`` in a line stands for anything.
    """
    lines = [line.strip() for line in fragment.splitlines() if line.strip()]
    parts = (".*".join(map(re.escape, line.split("..."))) for line in lines)
    return re.search("[^\0]*\n.*".join(parts), text) is not None
