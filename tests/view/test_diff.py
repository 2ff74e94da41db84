"""``meshc diff``: what two compiles have in common, and what not."""

import json

import pytest
from viewed import COMPILES, recorded

from meshc.cli import main


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other") / "out"
    flags = ["--algo", "all_reduce=pipeline", "--record", "-o", str(folder)]
    assert main(["compile", *COMPILES["csl"], *flags]) == 0
    return folder


def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_compile_is_like_itself(capsys):
    folder = str(recorded("csl"))
    capsys.readouterr()
    assert main(["diff", folder, folder]) == 0
    out = capsys.readouterr().out
    assert "modules are the same behind every pass" in out
    assert out.endswith("all emitted files are the same\n")


def test_numbers_are_those_of_the_reports(other, capsys):
    one = recorded("csl")
    capsys.readouterr()
    assert main(["diff", str(one), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (phase,) = found["phases"]
    reports = [report(one), report(other)]
    assert phase["left"] == [r["memory"]["left"] for r in reports]
    sums = [sum(row["cycles"] for row in r["cycles_by_op"]) for r in reports]
    assert phase["total"] == sums and sums[0] != sums[1]
    change = sum((b or 0) - (a or 0) for a, b in (op["costs"] for op in phase["ops"]))
    assert change == pytest.approx(sums[1] - sums[0])
    assert phase["differs_behind"] == "select-collective"
    manifests = [json.loads((f / "meshc.json").read_text())["sha256"] for f in (one, other)]
    differ = {n for n in manifests[0] if manifests[0][n] != manifests[1].get(n)}
    assert {f["file"] for f in found["files"]} == differ - {"record.json"}


def test_texts_differ_as_the_files_do(other, capsys):
    one = recorded("csl")
    capsys.readouterr()
    assert main(["diff", str(one), str(other), "--ir", "select-collective"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("+") and "groups = [6]" in line for line in lines)
    assert not any("tile." in line for line in lines)
    assert main(["diff", str(one), str(other), "--emitted", "decode.csl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    there = (other / "decode.csl").read_text().splitlines()
    assert all(line[1:] in there for line in lines[2:] if line.startswith("+"))


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--ir", "partitio"], "no module behind the pass 'partitio'"),
        (["--emitted", "none.csl"], "has no text 'none.csl'"),
        (["--ir", "--emitted", "main.csl"], "give one of them"),
    ],
)
def test_what_is_not_there_is_said(flags, words, capsys):
    folder = str(recorded("mlp"))
    assert main(["diff", folder, folder, *flags]) == 1
    assert words in capsys.readouterr().err
