"""``meshc sim run --report``: the page of what a script's programs left on the fabric."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from json_schema import faults
from test_browser import BROWSER, shown_at
from viewed import ROOT, data

from meshc.cli import main
from meshc.sim import cslc
from meshc.support.schemas import json_schema

ROWS, COLUMNS = 2, 3


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The folder of a program for CSL that is compiled, with data; what its host said is in
    ``report``."""
    folder = tmp_path_factory.mktemp("fabric")
    model = str(ROOT / "examples" / "mlp.mesh")
    assert main(["compile", model, "--target", "csl", "--mesh", f"{COLUMNS}x{ROWS}",
                 "-o", str(folder / "mlp")]) == 0  # fmt: skip
    here = Path.cwd()
    os.chdir(folder / "mlp")
    try:
        words = "--arch=wse3 --fabric-dims=12,6 --fabric-offsets=4,1 --memcpy --channels=1 -o out"
        assert cslc.main(["layout.csl", *words.split()]) == 0
        Path("data").mkdir()
        for name, shape in json.loads(Path("report.json").read_text())["inputs"].items():
            np.save(f"data/{name}.npy", np.full(shape, 0.5, np.float32))
        assert main(["sim", "run", "--report", "seen", "run.py", "--name", "out"]) == 0
    finally:
        os.chdir(here)
    return folder / "mlp"


def test_the_page_has_what_the_run_left(program):
    told = json.loads((program / "seen" / "fabric.json").read_text())
    assert faults(told, json_schema("fabric")) == []
    page = data((program / "seen" / "view.html").read_text(encoding="utf-8"))
    assert page["model"] == "run.py" and page["device"] == "wse3"
    (fabric,), (one,) = page["fabrics"], told["fabrics"]
    maps = {found["unit"]: found["rows"] for found in fabric["maps"]}
    memory = json.loads((program / "report.json").read_text())["memory"]["data"]
    assert maps["bytes"] == [[memory] * COLUMNS] * ROWS
    assert maps["cycles"] == one["busy"] and maps["words"] == one["words"]
    assert all(0 < cycles <= one["cycles"] for row in one["busy"] for cycles in row)
    assert fabric["routes"] == one["routes"]


def test_the_page_is_made_again_from_what_was_kept(program, tmp_path):
    again, picture = tmp_path / "again.html", tmp_path / "fabric.png"
    command = ["view", str(program / "seen"), "-o", str(again)]
    assert main(command) == 0
    assert again.read_bytes() == (program / "seen" / "view.html").read_bytes()
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    assert main([*command, "--png", str(picture)]) == 0
    wide, high = struct.unpack(">II", picture.read_bytes()[16:24])
    assert wide > 1000 and high > 400


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_it_opens_in_a_browser(program, tmp_path):
    seen = shown_at(program / "seen", "fabric", tmp_path)
    (fabric,) = json.loads((program / "seen" / "fabric.json").read_text())["fabrics"]
    words = sum(map(sum, fabric["words"]))
    assert f"{words:,} words on {ROWS * COLUMNS} cores" in seen.main
    assert all(f"color {one['color']}" in seen.main for one in fabric["routes"])


def test_scripts_end_as_they_like(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, code in (("sys.exit()", 1), ("sys.exit(3)", 3), ("sys.exit('enough')", 1)):
        Path("host.py").write_text(f"import sys\n{words}\n")
        assert main(["sim", "run", "--report", "seen", "host.py"]) == code
        assert not Path("seen").exists()
        said = capsys.readouterr().err
        assert ("brought no program to its end" in said) == (words == "sys.exit()")
        assert ("enough" in said) == ("enough" in words)


def test_a_folder_of_others_stays(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["sim", "run", "--report", str(tmp_path), "no-such-script.py"]) == 1
    assert "error[output-exists]" in capsys.readouterr().err
