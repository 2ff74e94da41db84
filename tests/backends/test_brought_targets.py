"""Targets of other packages: the example, as it is installed and through the command line; what is
wrong with one is said of its package."""

import sys
from pathlib import Path

import pytest
from installed_examples import installed
from offered import offer

import meshc
from meshc.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "one_core_c"
MATMUL = str(ROOT / "examples" / "matmul.mesh")
TARGET = ("one-core-c", "one_core_c.target:TARGET")


@pytest.fixture
def brought(monkeypatch, tmp_path):
    """Offers targets by name and place, those of the example and of modules ``mine``."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))

    def bring(*pairs, text=""):
        (tmp_path / "mine.py").write_text(text)
        sys.modules.pop("mine", None)
        offer(monkeypatch, "meshc.targets", *pairs)

    bring(TARGET)
    return bring


def said(capsys, *words):
    code = main([*words])
    return code, capsys.readouterr()


def test_the_command_line_takes_the_target_with_its_options(brought, capsys, tmp_path):
    out = tmp_path / "out"
    words = ["--target", "one-core-c{real=double}", "--mesh", "1x1", "-o", str(out)]
    assert said(capsys, "compile", MATMUL, *words)[0] == 0
    assert "static double" in (out / "main.c").read_text()
    assert said(capsys, "compile", MATMUL, *words, "--force")[0] == 0
    same = meshc.compile(MATMUL, target="one-core-c", real="double", mesh="1x1")
    assert same.files["main.c"] == (out / "main.c").read_text()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("one-core-c{reel=double}", "the target has no option 'reel'"),
        ("one-core-c{real=[a,b]}", "real cannot be"),
        ("one-core-c,python{kv=shift}", "--target names 2 targets"),
        ("one-core-d", "--target cannot be 'one-core-d'"),
    ],
)
def test_other_spellings_are_refused(brought, capsys, target, words):
    code, found = said(capsys, "compile", MATMUL, "--mesh", "1x1", "--target", target)
    assert code == 1 and words in found.err


def test_an_option_is_given_once(brought, capsys):
    words = ("--mesh", "1x1", "--target", "one-core-c{mesh=1x1}")
    code, found = said(capsys, "compile", MATMUL, *words)
    assert code == 1 and "--mesh and an option of --target are one" in found.err


def test_nothing_runs_its_programs_here(brought, capsys):
    words = ("--target", "one-core-c", "--mesh", "1x1", "--prompt-ids", "1")
    code, found = said(capsys, "run", MATMUL, *words)
    assert code == 1 and "meshc runs no programs for --target one-core-c" in found.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('no')", "cannot be loaded: ValueError: no"),
        ("class T: pass\nTARGET = T()", "is no meshc.Target"),
        ("class T:\n    NAME = 'other'\nTARGET = T()", "calls itself 'other'"),
    ],
)
def test_a_package_that_brings_no_target_is_named(brought, capsys, text, words):
    brought(("mine", "mine:TARGET"), text=text)
    code, found = said(capsys, "compile", MATMUL, "--target", "mine")
    assert code == 1
    assert f"bad-plugin]: target 'mine' of package-0 1.0 (mine:TARGET) {words}" in found.err


def test_what_breaks_in_a_target_is_said_with_its_lines(brought, capsys, monkeypatch, tmp_path):
    text = "class Own(meshc.MeshTarget):\n    NAME = 'mine'\n    def write(self, work):\n"
    text = f"import meshc\n{text}        return 1 // 0\nTARGET = Own()\n"
    brought(("mine", "mine:TARGET"), text=text)
    monkeypatch.chdir(tmp_path)
    code, found = said(capsys, "compile", MATMUL, "--target", "mine", "--mesh", "1x1")
    assert code == 1 and "of package-0 1.0 (mine:TARGET) failed: ZeroDivisionError" in found.err
    assert f"note: at {tmp_path / 'mine.py'}:5" in found.err and "meshc/" not in found.err
    with pytest.raises(meshc.MeshcError) as caught:
        meshc.compile(MATMUL, target="mine", mesh="1x1")
    assert caught.value.diagnostics[0].code == "bad-plugin"


def test_two_packages_of_one_name_are_named(brought, capsys):
    brought(TARGET, ("one-core-c", "mine:TARGET"))
    code, found = said(capsys, "compile", MATMUL, "--target", "one-core-c")
    assert code == 1 and "package-0 1.0" in found.err and "package-1 1.0" in found.err


@pytest.mark.slow
def test_the_example_package_is_installed_and_compiles(tmp_path):
    python = installed("one_core_c", tmp_path)
    words = ["compile", MATMUL, "--target", "one-core-c", "--mesh", "1x1", "-o", "out"]
    done = python("-m", "meshc", *words)
    assert done.returncode == 0, done.stderr
    assert "static float" in (tmp_path / "out" / "main.c").read_text()
