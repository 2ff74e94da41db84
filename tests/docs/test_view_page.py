"""The commands of docs/view.md, one after the other, as they stand there."""

import shlex

import pytest
from pages import ROOT, commands, page

from meshc.cli import main
from meshc.driver.record_files import FORMAT

TINY = str(ROOT / "examples" / "tiny_llama.mesh")


@pytest.mark.slow
def test_commands_work_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = [line.replace(" [--json]", "") for line in commands("docs/view.md")]
    assert len(run) == 9
    for line in run:
        words = [TINY if word == "MODEL" else word for word in shlex.split(line)[1:]]
        assert main([*words, "--seq", "32"] if TINY in words else words) == 0, line
    assert (tmp_path / "A" / "view.html").is_file() and (tmp_path / "page.html").is_file()
    assert "-" in capsys.readouterr().out


def test_the_format_is_the_one_of_the_page():
    assert f"`format` is {FORMAT}" in page("docs/view.md")
