"""The tables of docs/cuda.md are what benchmarks/cluster_choice.py prints."""

import importlib.util
import sys
from pathlib import Path

import pytest

from meshc.backends.cuda.executor import CXX
from meshc.devices import device

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables():
    path = ROOT / "benchmarks" / "cluster_choice.py"
    spec = importlib.util.spec_from_file_location("cluster_choice", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["choices", "sizes", "dataflows"])
def test_predicted_tables(tables, name):
    assert getattr(tables, name)(device("h200")) in PAGE


@pytest.mark.slow
@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_counted_bytes_are_those_predicted(tables):
    text = tables.counted()
    assert text in PAGE
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    assert rows and all(row[-1] == row[-2] for row in rows)


def test_the_command_prints_them(tables, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cluster_choice.py", "--device", "h100"])
    tables.main()
    shown = capsys.readouterr().out
    assert tables.sizes(device("h100")) in shown and tables.choices(device("h100")) in shown
    assert "counted" not in shown
