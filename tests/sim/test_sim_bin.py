"""The directory that ``meshc sim bin`` prints belongs to one installation and one user."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from meshc.cli import main


def printed(capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["sim", "bin"]) == 0
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


def test_an_unusable_cache_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands stay when this process ends, as a shell has their directory on its path."""
    os.mkfifo(tmp_path / "meshc")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert main(["sim", "bin"]) == 0
    said = capsys.readouterr()
    folder = Path(said.out.strip())
    assert folder.parent == temporary and sorted(os.listdir(folder)) == ["cs_python", "cslc"]
    assert "remark[cache]" in said.err
