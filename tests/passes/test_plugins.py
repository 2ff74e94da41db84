"""Passes of other packages: found by entry points, refused with their origins, and installed."""

import importlib.metadata as metadata
import json
import shlex
import sys
from pathlib import Path

import pytest
from installed_examples import installed
from offered import offer

import meshc
from meshc.cli import main
from meshc.passes import brought_passes
from meshc.passes.registry import own_pipeline, pass_names
from meshc.support import plugins as shared

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_pass"
TEXT = """module @m level(graph) {
  dims E = 4
  func @main(in %x: f32[E]) -> (f32[E]) {
    %y = graph.scale %x {factor = 0.5} : f32[E]
    graph.return %y
  }
}
"""
MODULE = """
from dataclasses import dataclass
from typing import ClassVar

import meshc


@dataclass(frozen=True)
class Given(meshc.Pass):
    \"\"\"Does what a test says.\"\"\"

    NAME: ClassVar[str] = "given"
    count: int = 2

    def run(self, module, report):
        return module
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a module ``brought`` with a text on the path and offers its ``Given`` as ``given``."""
    monkeypatch.syspath_prepend(tmp_path)

    def bring(text, name="given", value="brought:Given"):
        (tmp_path / "brought.py").write_text(text)
        sys.modules.pop("brought", None)
        offer(monkeypatch, "meshc.passes", (name, value))

    yield bring
    sys.modules.pop("brought", None)


def refused(call):
    with pytest.raises(meshc.MeshcError) as caught:
        call()
    (problem,) = caught.value.diagnostics
    return problem


def test_a_pass_is_found_with_its_options(package):
    package(MODULE)
    (step,) = meshc.parse_pipeline("given{count=3}")
    assert (step.NAME, step.count, str(step)) == ("given", 3, "given{count=3}")
    assert brought_passes.origin_of(step) == "package-0 1.0 (brought:Given)"
    assert pass_names()[-1] == "given"
    module = meshc.parse(TEXT)
    assert meshc.PassManager([step]).run(module) is module


def test_nothing_is_imported_before_it_is_asked_for(package):
    package("raise RuntimeError('imported')")
    assert [step.NAME for step in meshc.parse_pipeline("canonicalize")] == ["canonicalize"]
    assert "given" in pass_names() and "brought" not in sys.modules


def test_names_are_suggested(package):
    package(MODULE)
    assert refused(lambda: meshc.parse_pipeline("givne")).help == "did you mean 'given'?"


@pytest.mark.parametrize("own", [False, True])
def test_duplicates_are_refused_with_both_origins(monkeypatch, own):
    name = "partition" if own else "given"
    others = () if own else ((name, "two:Given"),)
    offer(monkeypatch, "meshc.passes", (name, "one:Given"), *others)
    problem = refused(lambda: meshc.parse_pipeline(f"canonicalize,{name}"))
    assert problem.code == "duplicate-pass" and problem.span.column == 14
    origins = "\n".join(problem.notes)
    assert "package-0 1.0 (one:Given)" in origins
    assert (f"meshc {meshc.__version__}" if own else "package-1 1.0 (two:Given)") in origins
    # What is installed beside meshc does not change its own pipelines.
    assert own_pipeline("partition")[0] == meshc.Partition()
    assert meshc.parse_pipeline("canonicalize")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import meshc\n", "import no_such_module\n", "ModuleNotFoundError: No module named"),
        ("import meshc\n", "import meshc\nraise SystemExit(7)\n", "SystemExit: 7"),
        ("class Given", "class Other", "AttributeError"),
        ("(meshc.Pass)", "", "is no subclass of meshc.Pass"),
        ("@dataclass(frozen=True)\n", "", "is no frozen dataclass"),
        ('= "given"', '= "taken"', "calls itself 'taken'"),
        ("count: int = 2", "count: int", "missing 1 required positional argument"),
        ("count: int = 2", "count: dict = None", "an option 'count' that is no text, number"),
        ("count: int = 2", 'count: "Nothing" = None', "NameError"),
        (
            "count: int = 2",
            'count: int = 2\n    LEVELS: ClassVar = ("paper",)',
            "works on the levels ('paper',)",
        ),
        (
            "count: int = 2",
            'count: int = 2\n    REQUIRES: ClassVar = frozenset({"fun"})',
            "names the fact 'fun', which is unknown",
        ),
    ],
)
def test_what_is_no_pass_is_refused(package, old, new, words):
    assert old in MODULE
    package(MODULE.replace(old, new))
    problem = refused(lambda: meshc.parse_pipeline("given"))
    assert problem.code == "bad-plugin" and words in problem.message
    assert "package-0 1.0 (brought:Given)" in problem.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 1 // 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return None", "returned NoneType, not a module"),
        ("module.function.body.ops.reverse()\n        return module", "does not verify"),
    ],
)
def test_a_pass_that_fails_is_a_diagnostic(package, tmp_path, body, words):
    package(MODULE.replace("return module", body))
    passes = meshc.parse_pipeline("given")
    problem = refused(lambda: meshc.PassManager(passes).run(meshc.parse(TEXT)))
    assert problem.code == "bad-plugin" and words in problem.message
    assert "package-0 1.0" in problem.message
    (note,) = problem.notes
    # What fails in it is named by its line, and what it leaves by where the pass begins.
    raises = body.startswith(("return 1", "raise"))
    line = MODULE[: MODULE.index("return module" if raises else "@dataclass")].count("\n") + 1
    assert note == f"at {tmp_path / 'brought.py'}:{line}"


def test_a_pass_that_changes_the_meaning_is_a_diagnostic_of_its_package(
    package, tmp_path, monkeypatch, capsys
):
    """What ``--check`` sees is the fault of who brought the pass."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.meshir").write_text(TEXT)
    body = "next(module.walk()).factor = 0.25\n        return module"
    package(MODULE.replace("return module", body))
    assert main(["opt", "m.meshir", "--passes", "given"]) == 0
    capsys.readouterr()
    assert main(["opt", "m.meshir", "--passes", "given", "--check"]) == 1
    said = capsys.readouterr().err
    assert "error[bad-plugin]: pass 'given' of package-0 1.0 (brought:Given) failed" in said
    assert f"note: at {tmp_path / 'brought.py'}:" in said and "meshc/" not in said
    assert "fault of meshc" not in said
    command = said.strip().splitlines()[-1].split("again: meshc ")[1]
    assert shlex.split(command)[-1] == "--check" and main(shlex.split(command)) == 1
    assert "error[bad-plugin]: pass 'given'" in capsys.readouterr().err


def test_what_check_alone_sees_is_shown_again_by_it(tmp_path, monkeypatch, capsys):
    """The reproducer of a fault that only running the modules shows says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.meshir").write_text(TEXT)

    def wrong(self, module, report):
        next(module.walk()).factor = 0.25
        return module

    monkeypatch.setattr(meshc.Canonicalize, "run", wrong)
    assert main(["opt", "m.meshir", "--passes", "canonicalize", "--check"]) == 3
    command = capsys.readouterr().err.strip().splitlines()[-1].split("again: meshc ")[1]
    assert main(shlex.split(command)) == 3
    assert shlex.split(command)[-1] == "--check"


def test_unreadable_metadata_is_a_diagnostic(monkeypatch):
    def broken(group):
        raise ValueError("not an entry point")

    shared.offers.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", broken)
    assert refused(lambda: meshc.parse_pipeline("canonicalize")).code == "bad-plugin"


@pytest.fixture(scope="module")
def own_pass(tmp_path_factory):
    """How to run Python with the example package."""
    return installed("own_pass", tmp_path_factory.mktemp("own_pass"))


def test_the_example_package_runs_through_opt(own_pass, tmp_path):
    text = (EXAMPLE / "tests" / "test_sink_scales.py").read_text()
    module = text.split('TEXT = """\\\n')[1].split('"""')[0]
    scores = tmp_path / "scores.meshir"
    scores.write_text(module)
    done = own_pass("-m", "meshc", "opt", str(scores), "--passes", "sink-scales", "--remarks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("graph.matmul") < done.stdout.index("graph.scale")
    assert "remark[scale-sunk]" in done.stderr
    listed = json.loads(own_pass("-m", "meshc", "passes", "--json").stdout)["passes"]
    assert listed[-1]["name"] == "sink-scales" and listed[-1]["options"] == {"always": False}
