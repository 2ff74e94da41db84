"""Tests of passes and of command lines, for pytest: ``pytest_plugins = ["meshc.testing"]``.

It brings the fixtures ``check_pass`` and ``check_golden`` and the flag ``--update-golden``, which
rewrites what is expected; a test that rewrote something fails once, so that it is looked at.

A *pass file* has a pipeline, an input and the expected text; one that names no device is for
``ideal``. Instead of a module, the expected part may be the messages of the errors that are
wanted::

    # passes: canonicalize,eliminate-transpose
    # remarks: transpose-eliminated
    module ... input ...
    # ---
    module ... expected ...

A *golden* is a folder with a ``command`` (the arguments of ``meshc``; {here} is the folder, {out}
an output directory) and ``expected``: exit code, stdout, stderr, and out/ with all files. Files of
the library that programs carry (the run-time package, the headers of kernels) are not stored: they
must equal their source. Nor are the hashes of a manifest: they must be those of the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

import pytest

from meshc.api import Diagnostics, MeshcError, PassManager, parse, parse_pipeline, print_module
from meshc.cli import main
from meshc.devices import device
from meshc.interp.check import check_same
from meshc.ir.clone import clone_module

_REWRITTEN = "rewritten; look at the difference and run again"
# Where programs carry files of the library, and where those come from.
_CARRIED = {
    "out/mesh_runtime": resources.files("meshc.backends.python.runtime"),
    "out": resources.files("meshc.backends.cuda.library"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite expected files; the tests that rewrote one fail, so that it is looked at",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be rewritten; never under CI."""
    wanted = bool(request.config.getoption("--update-golden"))
    if wanted and os.environ.get("CI"):
        pytest.fail("goldens are not rewritten under CI")
    return wanted


class PassCase:
    """A pass file: its ``comments``, the text that is ``given`` to the passes, and the
    ``expected`` one."""

    MARK = "# ---\n"

    def __init__(self, path: Path) -> None:
        self.path = path
        head, _, self.expected = path.read_text(encoding="utf-8").partition(self.MARK)
        lines = head.splitlines(keepends=True)
        self.comments = [line for line in lines if line.startswith("#")]
        self.given = "".join(line for line in lines if not line.startswith("#"))

    def fact(self, name: str) -> str:
        """The text after ``# name:``, or an empty text."""
        start = f"# {name}:"
        return next((c[len(start) :].strip() for c in self.comments if c.startswith(start)), "")

    def rewrite(self, result: str) -> None:
        """Replace the expected part."""
        text = "".join(self.comments) + self.given + self.MARK + result
        self.path.write_text(text, encoding="utf-8")

    def outcome(self) -> tuple[str, Diagnostics]:
        """The text of the module that comes out, or the messages of errors; and all remarks. The
        module must compute what was given, unless the file says a ``meaning``."""
        report = Diagnostics()
        try:
            module = parse(self.given, "case.meshir")
            named = module.device
            module.device = named or device("ideal")
            before = clone_module(module)
            after = PassManager(parse_pipeline(self.fact("passes"))).run(module, report)
        except MeshcError as error:
            return "".join(f"{d.render()}\n" for d in error.diagnostics), report
        after.device = named and after.device
        if not self.fact("meaning"):
            check_same(before, after)
        return print_module(after), report


@pytest.fixture
def check_pass(update_golden: bool) -> Callable[[Path], PassCase]:
    """Checks a pass file: the text that comes out, and the remarks that the file lists."""

    def check(path: Path) -> PassCase:
        case = PassCase(path)
        result, report = case.outcome()
        if update_golden and result != case.expected:
            case.rewrite(result)
            pytest.fail(_REWRITTEN)
        assert result == case.expected
        found = [message.code for message in report.messages]
        missing = [code for code in case.fact("remarks").split() if code not in found]
        assert missing == [], found
        return case

    return check


@pytest.fixture
def check_golden(
    update_golden: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., None]:
    """Checks a golden; other names that its command may have in braces are given as keywords."""

    def check(case: Path, **places: Path) -> None:
        monkeypatch.chdir(tmp_path)
        found = _outcome(case, {"here": case, **places, "out": tmp_path / "out"}, capsys)
        source = carried_files()
        for name in found.keys() & source.keys():
            assert found.pop(name) == source[name], name
        expected = stored_files(case)
        if update_golden and found != expected:
            _rewrite(case, found)
            pytest.fail(_REWRITTEN)
        assert sorted(found) == sorted(expected)
        for name, text in found.items():
            assert text == expected[name], name

    return check


def _outcome(
    case: Path, places: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """Every expected file by its path, with its text."""
    words = shlex.split((case / "command").read_text(encoding="utf-8"))
    code = main([word.format(**places) for word in words])
    assert code in (0, 1), "a fault of meshc is no golden"
    printed = capsys.readouterr()
    found = {"exit": f"{code}\n", "stdout": printed.out, "stderr": printed.err}
    for name, place in places.items():
        for stream in ("stdout", "stderr"):
            found[stream] = found[stream].replace(str(place), "{" + name + "}")
    out = places["out"]
    for path in sorted(out.rglob("*")):
        if path.is_file():
            found[f"out/{path.relative_to(out).as_posix()}"] = path.read_text(encoding="utf-8")
    if "out/meshc.json" in found:
        found["out/meshc.json"] = _without_hashes(found)
    return found


def _without_hashes(found: Mapping[str, str]) -> str:
    """The manifest without the hashes of files, which are compared with the files here."""
    manifest = json.loads(found["out/meshc.json"])
    hashes = manifest.pop("sha256")
    assert sorted([*hashes, "meshc.json"]) == manifest["files"]
    for name, digest in hashes.items():
        assert digest == hashlib.sha256(found[f"out/{name}"].encode()).hexdigest(), name
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def stored_files(case: Path) -> dict[str, str]:
    """What a golden expects: texts by path."""
    root = case / "expected"
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in files}


def carried_files() -> dict[str, str]:
    """The text of every file of the library, by the name under which programs carry it."""
    return {
        f"{place}/{entry.name}": entry.read_text(encoding="utf-8")
        for place, folder in _CARRIED.items()
        for entry in folder.iterdir()
        if entry.is_file()
    }


def _rewrite(case: Path, found: Mapping[str, str]) -> None:
    shutil.rmtree(case / "expected", ignore_errors=True)
    for name, text in found.items():
        path = case / "expected" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
