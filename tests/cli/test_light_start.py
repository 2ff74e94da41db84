"""What only looks something up loads nothing that takes long, and flags state the real defaults."""

import subprocess
import sys

import pytest

from meshc.cli.command_parser import parser
from meshc.cli.spelled_requests import request_of
from meshc.driver import CompileRequest

HEAVY = (
    "numpy", "islpy", "lark", "networkx", "jinja2", "gguf", "tqdm",
    "meshc.ir", "meshc.analysis", "meshc.passes", "meshc.frontend", "meshc.backends.python",
    "meshc.backends.csl", "meshc.backends.cuda", "meshc.backends.request",
    "meshc.interp", "meshc.driver", "meshc.sim.cs_python", "meshc.sim.csl_compiler",
)  # fmt: skip


def loaded_by(code):
    """The heavy modules that a fresh interpreter has loaded after ``code``."""
    text = (
        f"import sys\n{code}\nprint(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stderr.split()


def command(*words):
    return (
        "from meshc.cli import main\n"
        f"try:\n    code = main({list(words)!r})\nexcept SystemExit as end:\n    code = end.code\n"
        "assert code == 0, code"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("compile", "--help"),
        ("run", "--help"),
        ("opt", "--help"),
        ("sim", "suite", "--help"),
        ("sim", "bin"),
        ("devices",),
        ("devices", "wse2", "--json"),
        ("explain",),
        ("explain", "bad-mesh"),
    ],
    ids=" ".join,
)
def test_looking_up_loads_nothing_heavy(words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loaded_by(command(*words)) == []


def test_the_package_alone_loads_nothing_heavy():
    assert loaded_by("import meshc; meshc.__version__") == []


def test_what_is_heavy_is_seen():
    assert {"numpy", "lark", "meshc.driver"} <= set(loaded_by("import meshc; meshc.compile"))


def test_the_package_gives_the_names_of_the_api():
    code = (
        "import meshc\n"
        "from meshc import *\n"
        "assert set(meshc.__all__) <= set(dir(meshc)) and Partition is meshc.Partition\n"
        "assert not hasattr(meshc, 'no_such_name')"
    )
    assert "meshc.passes" in loaded_by(code)


@pytest.mark.parametrize("words", [("compile", "m"), ("run", "m", "--prompt", "p")])
def test_flags_that_are_not_given_have_the_defaults_of_a_request(words):
    assert request_of(parser().parse_args(words)) == CompileRequest()
