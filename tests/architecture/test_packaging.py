"""What is shipped: every data file, the project's own metadata, documented targets."""

import re
import tomllib
from pathlib import Path

import meshc
from meshc.passes.registry import pass_names

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_data_file_is_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["meshc"]
    package = ROOT / "meshc"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    shipped |= set(package.glob("py.typed"))
    files = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    missing = {p.relative_to(ROOT).as_posix() for p in files - shipped if p.suffix != ".py"}
    assert missing == set()


def test_every_pattern_ships_something():
    for pattern in PROJECT["tool"]["setuptools"]["package-data"]["meshc"]:
        assert list((ROOT / "meshc").glob(pattern)), pattern


def test_every_folder_with_code_is_a_package():
    """Folders without ``__init__.py`` would be left out of the wheel."""
    folders = {path.parent for path in (ROOT / "meshc").rglob("*.py")}
    assert [f for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_dependencies_are_documented():
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(d for ds in extras.values() for d in ds)]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in wanted]
    assert [name for name in names if name not in page] == []


def test_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", readme))
    assert {"demo", "test"} <= named <= targets
    assert "make" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_version_is_single():
    assert "version" in PROJECT["project"]["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", meshc.__version__)


def test_what_the_project_is_made_of():
    """Whoever knows the project finds these at their places, whatever else is built anew."""
    folders = {".ci", "benchmarks", "docs", "examples", "meshc", "tests", "tools"}
    files = {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "pyproject.toml",
    }
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} >= folders
    assert {path.name for path in ROOT.iterdir() if path.is_file()} >= files
    needed = {re.split(r"[<>=]", one)[0] for one in PROJECT["project"]["dependencies"]}
    assert needed >= {"islpy", "jinja2", "lark", "networkx", "numpy"}
    passes = {"partition", "place-interleave", "eliminate-transpose", "fuse-cluster"}
    assert {*pass_names()} >= passes
