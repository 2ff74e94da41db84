"""``meshc man``: a manual page with every command and flag."""

import shutil
import subprocess

import pytest

from meshc.cli import main
from meshc.cli.command_parser import parser
from meshc.cli.manual import _text


def printed(capsys):
    assert main(["man"]) == 0
    return capsys.readouterr().out


def flags(parser):
    """The flags of a parser and of all commands below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from flags(command)


def test_every_command_and_flag_is_on_the_page(capsys):
    text = printed(capsys)
    plain = text.replace("\\-", "-")
    (commands,) = (a.choices for a in parser()._actions if isinstance(a.choices, dict))
    assert [name for name in commands if f"\n.SS {name}\n" not in plain] == []
    known = set(flags(parser())) - {"-h", "--help"}
    assert len(known) > 100
    described = {word.rstrip(",") for line in plain.split("\n.TP\n.B ")[1:]
                 for word in line.split("\n")[0].split()}  # fmt: skip
    assert known - described == set()
    assert ".SS sim run\n" in text


def test_nothing_that_is_said_is_a_request():
    assert _text(".B bold") == "\\&.B bold" and _text("'x") == "\\&'x"
    assert _text("a\\fB-b") == "a\\efB\\-b"


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff is installed")
def test_groff_reads_it_without_a_warning(capsys):
    command = ["groff", "-man", "-Tutf8", "-ww", "-Wbreak"]
    done = subprocess.run(command, input=printed(capsys), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert len(done.stdout.split("\n")) > 1000
