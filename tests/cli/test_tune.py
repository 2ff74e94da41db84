"""``meshc tune``: tables, JSON, pictures, and what strangers type."""

import json
import shlex
from pathlib import Path

import pytest
from strangers import ends_in_words

from meshc.cli import main
from meshc.cli.plan_objects import unexplained
from meshc.cli.tunings import PROVENANCE

TINY = str(Path(__file__).parents[1] / "data" / "tiny" / "llama-9h3-tied")
SHORT = ["--device", "wse2", "--phase", "decode", "--seq", "64", "--mesh", "2x2", "--mesh", "3x3"]
PINNED = [*SHORT, "--algo", "all_reduce=k_tree:1"]


def told(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_number_has_provenance_and_flags_of_estimate(capsys):
    found = told(capsys, "tune", TINY, *PINNED)
    assert found["provenance"] == PROVENANCE
    explained = {**found, "provenance": None}
    assert list(unexplained(explained, known=PROVENANCE)) == []
    (phase,) = found["phases"]
    assert len(phase["tried"]) == 2 and phase["front"][0] in phase["tried"]
    for one in phase["tried"]:
        shared = ["--device", "wse2", "--seq", "64", "--algo", "all_reduce=k_tree:1"]
        again = told(capsys, "estimate", TINY, *shared, *one["flags"])["plans"][0]["phases"][0]
        assert one["seconds"] == pytest.approx(again["seconds"])
        assert one["needed"] == again["memory"]["needed"] and one["fits"] == again["fits"]
        assert sum(one["mechanisms"].values()) == pytest.approx(one["seconds"])


def test_the_table_ends_in_a_command_that_says_more(capsys):
    assert main(["tune", TINY, *PINNED]) == 0
    out = capsys.readouterr().out
    head, _, counted, *_, last = out.splitlines()
    assert head == "llama-9h3-tied on wse2, f16, 64 tokens"
    assert counted == "decode: 2 configurations, 2 with a time, 2 of which fit"
    command = shlex.split(last.partition(": meshc ")[2])
    assert main(command) == 0
    rate = next(line for line in out.splitlines() if line[:1].isdigit()).split()[2]
    assert rate in capsys.readouterr().out.splitlines()[1].split()


def test_results_are_kept_and_read_again(capsys, tmp_path):
    file = ["--results", str(tmp_path / "results.jsonl")]
    first = told(capsys, "tune", TINY, *PINNED, *file)
    again = told(capsys, "tune", TINY, *PINNED, *file)
    assert (first.pop("from_results"), again.pop("from_results")) == (0, 2)
    assert first == again
    assert main(["tune", TINY, *SHORT, *file]) == 1
    err = capsys.readouterr().err
    assert "error[results-differ]" in err and "algo: ['all_reduce=k_tree:1'] there, [] here" in err


def test_a_picture_is_the_same_each_time(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file in files:
        assert main(["tune", TINY, *PINNED, "--against", "memory", "--plot", str(file)]) == 0
    one, two = (file.read_bytes() for file in files)
    assert one == two and one.startswith(b"\x89PNG")


STRANGERS = [
    [],
    ["llama-9"],
    ["pyproject.toml"],
    ["examples/mlp.mesh"],
    ["examples/mlp.meshir"],
    [TINY, TINY],
    [TINY, "--device", "wse9"],
    [TINY, "--device", "wse2", "--device", "wse3"],
    [TINY, "--device", "wse2", "--gpus", "2"],
    [TINY, "--device", "wse2", "--mesh", "0x4"],
    [TINY, "--device", "wse2", "--mesh", "4"],
    [TINY, "--device", "wse2", "--mesh", "2000x4"],
    [TINY, "--device", "wse2", "--mesh", "r=9999,y=9,x=9"],
    [TINY, "--device", "h200", "--mesh", "4x4"],
    [TINY, "--device", "h200", "--algo", "gemm=cannon"],
    [TINY, "--device", "h200", "--gpus", "0"],
    [TINY, "--device", "h200", "--gpus", "17"],
    [TINY, "--device", "h200", "--gpus", "two"],
    [TINY, "--device", "h200", "--batch", "17"],
    [TINY, "--device", "h200", "--batch", "0"],
    [TINY, "--device", "h100x4", "--gpus", "8"],
    [TINY, "--device", "h200", "--keep-quantised", "e4m3_128", "--phase", "decode"],
    [TINY, "--device", "wse2", "--keep-quantised", "q4_0"],
    [TINY, "--device", "wse2", "--batch", "65", "--mesh", "3x3"],
    [TINY, "--phase", "training"],
    [TINY, "--seq", "0"],
    [TINY, "--layers", "0"],
    [TINY, "--dtype", "int4"],
    [TINY, "--algo", "gemm=fast"],
    [TINY, "--weights", "/no/such/weights"],
    [TINY, "--against", "money"],
    [TINY, "--processes", "0"],
    [TINY, "--processes", "two"],
    [TINY, "--processes", "2", "--scheduler", "tcp://127.0.0.1:1"],
    [TINY, "--plot", "front.svg"],
    [TINY, *SHORT, "--results", "/no/such/folder/results.jsonl"],
    [TINY, *SHORT, "--results", "pyproject.toml"],
    [TINY, *SHORT, "--results", "docs"],
]


@pytest.mark.parametrize("arguments", STRANGERS, ids=" ".join)
def test_what_strangers_type_ends_in_words(capsys, arguments):
    ends_in_words(capsys, ["tune", *arguments])
