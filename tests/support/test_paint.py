"""Colours are added on terminals that have them, and change nothing else."""

import io
import re

import pytest

from meshc.support.diagnostics import Diagnostic
from meshc.support.paint import coloured, paint_of, plain
from meshc.support.spans import Source, Span

PLACE = Span(Source("m.mesh", "x = a @ b\n"), 1, 5, 5)
SEVERITIES = ("error", "warning", "remark", "missed")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("severity", SEVERITIES)
def test_colours_only_add_control_sequences(severity):
    message = Diagnostic(severity, "some-code", "what \x1b[31m is", PLACE, ("a note",), "do this")
    found = message.render(coloured)
    assert re.sub("\x1b\\[[0-9;]*m", "", found) == message.render() == message.render(plain)
    assert "\x1b" not in message.render()
    assert len({line for line in found.splitlines() if line.endswith("\x1b[0m")}) >= 3


def test_severities_differ():
    heads = {Diagnostic(s, "code", "words").render(coloured).split("m")[0] for s in SEVERITIES}
    assert len(heads) == 4


@pytest.mark.parametrize(
    ("stream", "variables", "paint"),
    [
        (Terminal(), {}, coloured),
        (Terminal(), {"NO_COLOR": ""}, coloured),
        (Terminal(), {"NO_COLOR": "1"}, plain),
        (Terminal(), {"TERM": "dumb"}, plain),
        (io.StringIO(), {}, plain),
    ],
)
def test_when_there_are_colours(stream, variables, paint, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paint_of(stream) is paint
