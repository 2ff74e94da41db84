"""Options of the simulator by flags: of the stand-ins, and of runs of emitted programs."""

from pathlib import Path

import pytest

from meshc.cli import main
from meshc.sim.commands_folder import own_bin

LLAMA = str(Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1")


def test_stand_ins_have_the_options_that_bin_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["sim", "bin", "--threads", "2", "--timing", "machine"]) == 0
    folder = capsys.readouterr().out.strip()
    text = (tmp_path / "meshc" / folder.rpartition("/")[2] / "cs_python").read_text()
    assert 'meshc.sim.cs_python --threads 2 --timing machine "$@"' in text
    assert folder != str(own_bin())
    assert "--threads" not in (own_bin() / "cs_python").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--target", "python", "--sim-threads", "2"), "--sim-threads is for the simulator"),
        (("--target", "cuda", "--sim-timing", "machine", "--backend", "cuda-cpu"), "--sim-timing"),
        (("--target", "csl", "--mesh", "2x2", "--sim-threads", "0"), "--sim-threads is 0"),
    ],
)
def test_other_programs_take_no_options_of_the_simulator(words, told, capsys):
    ids = ["--prompt-ids", "1,2", "--max-tokens", "1"]
    assert main(["run", LLAMA, *ids, "--no-cache", *words]) == 1
    assert told in capsys.readouterr().err
