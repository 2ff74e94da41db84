"""The directory that ``meshc sim bin`` prints belongs to one installation and one user."""

import sys
from pathlib import Path

import pytest

from meshc.sim.commands import main


def printed(capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["bin"]) == 0
    return Path(capsys.readouterr().out.strip())


def test_installations_do_not_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = printed(capsys)
    assert first.is_relative_to(tmp_path) and printed(capsys) == first
    monkeypatch.setattr(sys, "executable", "/somewhere/else/python")
    second = printed(capsys)
    assert second != first
    assert "/somewhere/else" not in (first / "cslc").read_text()
    assert "/somewhere/else" in (second / "cslc").read_text()
