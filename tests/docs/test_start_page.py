"""docs/start.md: its files and commands, typed one after the other, print what stands below them.

``--update-golden`` writes what they print into the page.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib

import pytest
from pages import ROOT

from meshc.cli import main
from meshc.support import plugins

PAGE = ROOT / "docs" / "start.md"
FILES = re.compile(
    r"^`([^`\n]+)`(?: in a folder `(\w+)`)?:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL
)
TYPED = re.compile(r"^```\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
PORT = "8000"
CHANGING = re.compile(
    r'\d+(?= bytes$)| +\d+\.\d+$|(?<="id":"cmpl-)\d+|(?<="created":)\d+', re.MULTILINE
)


def section(title):
    """The text of the page under the heading ``title``."""
    (found,) = (s for s in PAGE.read_text("utf-8").split("\n## ") if s.startswith(title))
    return found


def steps(text):
    """The commands in ``text`` and what is said to stand below each."""
    for block in TYPED.findall(text):
        for step in block.removeprefix("$ ").split("\n$ "):
            command, _, below = step.partition("\n")
            yield command, below.rstrip("\n")


@pytest.fixture
def walk(tmp_path, monkeypatch, capfd, update_golden):
    """Types the commands of a section in a folder that has all files of the page."""
    for name, folder, text in FILES.findall(PAGE.read_text("utf-8")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"meshc": "-m meshc", "python": ""}.items():
        (programs / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n'
        )
        (programs / name).chmod(0o755)
    paths = f"{ROOT}{os.pathsep}{tmp_path / 'gates'}"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME", str(tmp_path / "cache")))
    monkeypatch.chdir(tmp_path)

    def printed(command):
        """By this process where it can, which is done sooner."""
        words = shlex.split(command)
        if words[0] == "meshc" and "|" not in words:
            main(words[1:])
            out, err = capfd.readouterr()
            return err + out
        done = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.stdout

    def go(title, wanted=lambda command: True, replaced=("", "")):
        seen, others = [], []
        for command, below in steps(section(title)):
            if not wanted(command):
                continue
            found = printed(command.replace(*replaced) if replaced[0] else command).rstrip("\n")
            found = found.replace(f"{tmp_path}/", "")
            found = found.replace(*reversed(replaced)) if replaced[0] else found
            if CHANGING.sub("N", found) != CHANGING.sub("N", below):
                others.append((f"$ {command}\n{below}".rstrip("\n"), f"$ {command}\n{found}"))
            seen.append(found)
        if update_golden and others:
            page = PAGE.read_text("utf-8")
            for old, new in others:
                assert page.count(f"{old}\n") == 1
                page = page.replace(f"{old}\n", f"{new}\n")
            PAGE.write_text(page, "utf-8")
        assert seen and [old for old, _ in others] == [new for _, new in others]
        return seen

    return go


def test_a_model(walk):
    assert "within 1e-6: True" in walk("A model")


@pytest.fixture
def owl(walk):
    """The checkpoint of the page."""
    subprocess.run([sys.executable, "owl.py"], check=True)


def of_other_targets(command):
    return "--target" in command


def test_a_checkpoint(walk):
    walk("A checkpoint", lambda command: not of_other_targets(command))


@pytest.mark.slow
@pytest.mark.cuda_compiler
def test_a_checkpoint_on_other_targets(walk, owl):
    """Its tokens are those of the Python target."""
    first, *_ = (below for command, below in steps(section("A checkpoint")) if below)
    for found in walk("A checkpoint", of_other_targets):
        assert found.splitlines()[-1] == first


@pytest.mark.oracle
def test_the_tokens_are_those_of_transformers(walk, owl):
    torch = pytest.importorskip("torch", reason="the extra is not installed: meshc[oracle]")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained("owl", dtype=torch.float64)
    prompt = torch.tensor([[5, 17, 42]])
    answer = model.generate(prompt, max_new_tokens=6, do_sample=False)[0, 3:]
    first, *_ = (below for command, below in steps(section("A checkpoint")) if below)
    assert first == ",".join(map(str, answer.tolist()))


def test_a_device(walk, owl):
    walk("A device")


@pytest.fixture
def gates(tmp_path, walk, monkeypatch):
    """The package of the page, as pip installs it."""
    said = tomllib.loads((tmp_path / "gates" / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "gates" / "gates-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gates\nVersion: 0.1\n")
    for group, offered in said["entry-points"].items():
        lines = [f"[{group}]", *(f"{name} = {where}" for name, where in offered.items())]
        (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path / "gates")
    plugins.offers.cache_clear()
    yield
    plugins.offers.cache_clear()
    sys.modules.pop("fold_silu", None)


def test_a_pass(walk, gates):
    _, checked = walk("A pass", lambda command: not of_other_targets(command))
    assert "checked: " in checked


@pytest.mark.slow
def test_a_pass_for_another_target(walk, gates):
    without, folded = walk("A pass", of_other_targets)
    cycles = [int(re.search(r"(\d+) cycles predicted", line)[1]) for line in (without, folded)]
    assert cycles[0] > 2 * cycles[1], "a third, says the page"


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_csl_program(walk, whole):
    walk("A CSL program", lambda command: whole or "commands.sh" in command)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def server(walk, owl, port):
    """The server of the page, at another port."""
    pytest.importorskip("uvicorn")
    ((command, _),) = re.findall(
        r"^```sh\n(meshc serve .*)\n(`*)```", section("A server"), re.MULTILINE
    )
    words = shlex.split(command.replace(PORT, port))[1:]
    with subprocess.Popen(
        [sys.executable, "-m", "meshc", *words], stdout=subprocess.PIPE, text=True
    ) as running:
        said = running.stdout.readline().strip()
        assert f"`{said.replace(port, PORT)}`" in section("A server")
        yield
        running.terminate()
        assert running.wait(60) == 0


@pytest.mark.serve
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_server(walk, server, port):
    walk("A server", replaced=(PORT, port))


def test_extras_are_those_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| (`.*?) \|", section("Installing"), re.MULTILINE)
    listed = re.findall(r"`([a-z]+)`", " ".join(rows))
    assert sorted(listed) == sorted(project["optional-dependencies"])
