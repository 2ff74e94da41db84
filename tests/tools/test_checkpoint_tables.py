"""The tables of docs/checkpoints.md say what meshc does with the configurations of checkpoints."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "checkpoint_tables.py"
# A program or a refusal of each kind; all of them take a second and a half.
SOME = (
    ("gpt2", "python"),
    ("gpt2", "csl, wse3"),
    ("smollm2-135m", "csl, wse2"),
    ("qwen3-0.6b", "cuda, h100"),
    ("llama-3.3-70b", "cuda, h100"),
    ("gpt-oss-20b", "cuda, h100"),
)


def loaded():
    spec = importlib.util.spec_from_file_location("checkpoint_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded()


@pytest.fixture(scope="module")
def page():
    """The cells of each checkpoint, by its name, as the page has them."""
    lines = script.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [tuple(line.strip("| ").split(" | ")) for line in lines if line.startswith("| ")]
    names = script.checkpoints()
    return {row[0]: row for row in rows if row[0] in names}


def test_every_checkpoint_has_a_row(page):
    names = script.checkpoints()
    assert list(page) == [
        *(name for name in names if len(page[name]) == len(script.READ)),
        *(name for name in names if len(page[name]) == len(script.UNREAD)),
    ]
    assert len(names) >= 100


@pytest.mark.parametrize(("name", "column"), SOME)
def test_some_cells_are_what_meshc_does(name, column, page):
    found = script.COLUMNS[column](script.checkpoints()[name])
    assert page[name][script.READ.index(column)] == found


@pytest.mark.parametrize("name", ["phi-2", "falcon-7b", "gpt-j-6b"])
def test_some_refusals_are_what_meshc_says(name, page):
    assert page[name] == script.row(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", script.checkpoints())
def test_rows_are_what_meshc_does(name, page):
    assert page[name] == script.row(name)


def test_tables_of_a_page_are_replaced():
    old = "text\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nmore\n"
    new = "| a | b |\n| --- | --- |\n| 3 | 4 |\n| 5 | 6 |"
    assert script.in_page(old, [new]) == f"text\n\n{new}\n\nmore\n"
    with pytest.raises(AssertionError, match="0 tables"):
        script.in_page("text\n", [new])


def test_rows_are_printed(capsys):
    assert script.main(["phi-2"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header == "| checkpoint | refused |"
    assert row.startswith("| phi-2 | `unsupported-architecture`: ")
