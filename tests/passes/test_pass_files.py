"""Every pass file: the pipeline turns the input into the expected text, and computes the same."""

import inspect
import re
from pathlib import Path

import pytest

import meshc
from meshc.devices import device
from meshc.interp.check import check_same
from meshc.ir.clone import clone_module

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*/*.meshir"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in CASES]


def outcome(case):
    """What comes out: module and remark codes, or the messages of errors. A case that names no
    device is one for ``ideal``, as it is to ``meshc compile``; its text leaves that out."""
    report = meshc.Diagnostics()
    try:
        module = meshc.parse(case.given, "case.meshir")
        named = module.device
        module.device = named or device("ideal")
        before = clone_module(module)
        passes = meshc.parse_pipeline(case.fact("passes"))
        after = meshc.PassManager(passes).run(module, report)
    except meshc.MeshcError as error:
        return "".join(f"{d.render()}\n" for d in error.diagnostics), report
    after.device = named and after.device
    if not case.fact("meaning"):
        check_same(before, after)
    return meshc.print_module(after), report


@pytest.mark.parametrize("path", CASES, ids=NAMES)
def test_pass_file(path, pass_case, update_golden):
    case = pass_case(path)
    result, report = outcome(case)
    if update_golden and result != case.expected:
        case.rewrite(result)
        pytest.fail("rewritten; look at the difference and run again")
    assert result == case.expected
    found = [m.code for m in report.messages]
    for code in case.fact("remarks").split():
        assert code in found, found


def test_folders_are_named_after_passes():
    known = {cls.NAME.replace("-", "_") for cls in meshc.PASSES}
    assert {path.parent.name for path in CASES} <= known


@pytest.mark.parametrize("cls", meshc.PASSES, ids=lambda cls: cls.NAME)
def test_docstring_example_is_what_happens(cls, pass_case):
    """The lines of Before:: and After:: in the docstring stand in the case ``example``."""
    doc = inspect.getdoc(cls)
    match = re.search(r"Before::\n\n(.*?)\n\nAfter::\n\n((?:    [^\n]*\n?)+)", doc, re.DOTALL)
    assert match, f"{cls.NAME} has no Before:: and After:: in its docstring"
    case = pass_case(HERE / cls.NAME.replace("-", "_") / "example.meshir")
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
