"""Every command and program on the pages is one that works.

A word in capitals stands for something, ``[..]`` may be left out, and ``a|b`` is a choice. The
flags of every command of every page are parsed, with all that may be left out and without it. Those
of two pages are run too, but for what takes weights of others or minutes: tests/e2e and
tests/cli/test_estimate.py do; other pages have tests of their own.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from pages import ROOT, blocks, commands, page

from meshc.cli import main
from meshc.cli.command_parser import parser

PAGES = ("README.md", "docs/command-line.md")
TINY = str(ROOT / "tests" / "data" / "tiny" / "llama-rope3")
MEANINGS = {
    "MODEL": TINY,
    "DIR": "out",
    "A": "out",
    "B": "out",
    "PATH": TINY,
    "FILE": "written",
    "FILE.npy": "written.npy",
    "FILE.meshir": "examples/mlp.meshir",
    "FILE.csv": str(ROOT / "tests" / "data" / "trace.csv"),
    "TEXT": "text",
    "WxH": "4x4",
    "NAME": "wse2",
    "CODE": "bad-mesh",
    "M": "8",
    "K": "12",
    "N": "16",
}
LISTED = sorted({(name, line) for name in PAGES for line in commands(name)})
EVERYWHERE = sorted(
    {
        (name, line)
        for name in ("README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
        for line in commands(name)
    }
)
KNOWN = parser()


def without_options(line):
    return re.sub(r"\s*\[(?![^\]]*\]['\"])[^\[\]]*\]", "", line)


def words(line, choice=0):
    """The words of a command line, with what its capitals stand for and one of each choice."""
    found = []
    for word in shlex.split(re.sub(r"\[(-[^\[\]]*|[A-Z]+)\]", r"\1", line))[1:]:
        names = word.split("|") if re.fullmatch(r"[\w-]+(\|[\w-]+)+", word) else [word]
        name = names[choice % len(names)]
        found.append(MEANINGS.get(name, name))
    return found


def variants(line):
    """The words of a command with and without what may be left out, and with each choice."""
    for text, choice in itertools.product((line, without_options(line)), range(3)):
        found = words(text, choice)
        if "or" in found:  # ``-o DIR or -``
            found = found[: found.index("or")]
        yield found


def runnable(line):
    """The shortest form of a command, unless it needs weights, a tokenizer, a client or torch, or
    long."""
    found = next(variants(without_options(line)))
    others = {"smollm2-135m", "--prompt", "--messages", "cuda", "estimate", "serve", "import-torch"}
    needs = others & set(found)
    minutes = found == ["reproduce"]  # whose sections are those of test_reproduction_page.py
    return None if needs or minutes else found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder where the commands of a page find what they name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_parsed(found):
    """Whether the command line reads ``found``, and its command is the first word."""
    try:
        return KNOWN.parse_args(found).command == found[0]
    except SystemExit:
        return False


def test_flags_are_those_of_the_command():
    assert [
        f"{where}: {line}: {' '.join(found)}"
        for where, line in EVERYWHERE
        for found in variants(line)
        if not is_parsed(found)
    ] == []
    assert not is_parsed(["passes", "--no-such-flag"])


RUN = [line for _, line in LISTED if runnable(line)]


@pytest.mark.every_case
@pytest.mark.parametrize("line", RUN)
def test_command_runs(line, place, capsys):
    command = runnable(line)
    if command[0] == "run" or command[:2] == ["serve-trace", "out"]:
        assert main(["compile", TINY, "--weights", TINY, "-o", "out", "--mesh", "2x2"]) == 0
    if command[0] in ("view", "diff"):
        assert main(["compile", TINY, "--record", "-o", "out", "--mesh", "2x2"]) == 0
    assert main(command) == 0
    assert capsys.readouterr().out


def test_enough_commands_are_found():
    assert len(LISTED) >= 15 and len(RUN) >= 9 and len(EVERYWHERE) >= 100
    assert any("examples/mlp.meshir" in line for line in RUN)


def test_the_shipped_graph_is_what_meshc_makes(place, capsys):
    main(["compile", "examples/mlp.mesh", "--compile-to", "graph", "-o", "-"])
    assert capsys.readouterr().out == (ROOT / "examples" / "mlp.meshir").read_text(encoding="utf-8")


@pytest.fixture
def shell(place):
    """Runs a script of bash in which ``meshc`` is this meshc; what it prints."""
    (place / "bin").mkdir()
    program = place / "bin" / "meshc"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m meshc "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def run(script):
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_steps_of_the_csl_page(shell, place):
    """As they stand there, with tensors put into ``data``; and again, which keeps those."""
    text, *_ = blocks("docs/csl.md", "sh")
    *steps, last = text.splitlines()
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((64, 96)), rng.standard_normal((96, 48))
    shell("\n".join(steps))
    for name, array in (("x", x), ("w", w)):
        np.save(place / "out" / "data" / f"{name}.npy", array.astype(np.float16))
    assert re.match(r"\d+ cycles", shell(f"cd out\n{last}"))
    found = np.load(place / "out" / "data" / "result.npy")
    np.testing.assert_allclose(found, x @ w, atol=0.2)
    shell(steps[0])
    assert np.array_equal(np.load(place / "out" / "data" / "result.npy"), found)


def test_shipped_program_of_the_library(shell):
    assert "remark[placement]" in shell(f"{shlex.quote(sys.executable)} examples/use_one_pass.py")


@pytest.mark.slow
@pytest.mark.smollm2
def test_answer_of_the_readme(shell):
    (block,) = [text for text in blocks("README.md", "") if text.startswith("$ ")]
    command, _, answer = block.removeprefix("$ ").partition("\n")
    assert shell(command) == answer


@pytest.mark.parametrize(("phase", "mesh"), [("decode", "360x360"), ("prefill", "660x660")])
def test_most_layers_of_the_performance_page(phase, mesh, capsys):
    """The table has the most layers that fit, and the block below it the refusal of one more."""
    text = page("docs/performance.md")
    most = int(re.search(rf"^\| {phase} \| {mesh} \| (\d+)", text, re.MULTILINE)[1])
    words = ["compile", "llama-3-8b", "--phase", phase, "--device", "wse2", "--mesh", mesh]
    words += ["--dtype", "f16", "--compile-to", "tile", "--layers"]
    assert main([*words, str(most)]) == 0
    assert main([*words, str(most + 1)]) == 1
    message = capsys.readouterr().err.splitlines()[0].removeprefix("error[does-not-fit]: ")
    assert f"\n{message}\n" in text


def test_the_device_of_the_page_compiles(tmp_path):
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    (sample,) = (s for s in re.findall(r"```toml\n(.*?)```", page, re.S) if 'name = "mine"' in s)
    (tmp_path / "mine.toml").write_text(sample)
    for model, more in ((str(ROOT / "examples" / "mlp.mesh"), []), (TINY, ["--seq", "16"])):
        device = ["--device", str(tmp_path / "mine.toml"), "--mesh", "4x4"]
        assert main(["compile", model, *device, *more]) == 0
