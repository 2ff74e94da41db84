"""What a shell is told to complete, and the scripts that ask."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshc.cli import main

ROOT = Path(__file__).parents[2]


def completed(line, folder):
    """The completions of a command line, as the shell's script asks for them."""
    answer = folder / "answer"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "meshc"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return {word.strip() for word in answer.read_text(encoding="utf-8").split("\n")}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("meshc ", {"compile", "run", "sim", "completion"}),
        ("meshc com", {"compile", "completion"}),
        ("meshc compile --target ", {"python", "csl", "cuda", "ttlang"}),
        ("meshc compile --device ws", {"wse2", "wse3"}),
        ("meshc estimate --device ws", {"wse2", "wse3"}),
        ("meshc devices wse", {"wse2", "wse3"}),
        ("meshc compile --print-ir", {"--print-ir-after-all", "--print-ir-after"}),
        ("meshc compile llama-3-", {"llama-3-8b"}),
        ("meshc compile here.m", {"here.mesh"}),
        ("meshc passes place", {"place-interleave", "place-tasks"}),
        ("meshc explain bad-mesh", {"bad-mesh", "bad-meshir"}),
        ("meshc sim ", {"bin", "run", "suite"}),
    ],
)
def test_completions(line, wanted, tmp_path):
    (tmp_path / "here.mesh").write_text("")
    found = completed(line, tmp_path)
    assert found >= wanted
    assert line.endswith(" ") or found == wanted


@pytest.mark.parametrize(
    ("shell", "check"),
    [
        ("bash", 'eval "$1"; complete -p meshc'),
        ("zsh", 'autoload -U compinit; compinit -D; eval "$1"; print $_comps[meshc]'),
        ("fish", "echo $argv[1] | source; complete meshc"),
    ],
)
def test_scripts_are_taken_by_their_shell(shell, check, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "meshc" in text and "_ARGCOMPLETE" in text
    program = shutil.which(shell)
    if program is not None:
        rest = [text] if shell == "fish" else [shell, text]
        done = subprocess.run(
            [program, "-c", check, *rest], capture_output=True, text=True, check=True,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert "complete" in done.stdout
