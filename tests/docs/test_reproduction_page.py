"""docs/reproduction.md is what ``meshc reproduce`` prints."""

import json

import pytest
from pages import page as page_of
from reduced import only

from meshc.cli import main
from meshc.driver.reproduction.markdown_page import page, section_lines
from meshc.driver.reproduction.sections import builders, chosen, made
from meshc.driver.reproduction.servers import Servers

FEW = Servers(1, requests=10)
"""Shorter simulations than the page has: conditions and published values must be the same."""
LONG = ("layered-figure-3", "layered-figure-3-limits", "layered-2", "layered-9")


@pytest.fixture(scope="module")
def written():
    """The text of each section of the page by its name."""
    _, *parts = page_of("docs/reproduction.md").split("\n## ")
    found = {part.partition("\n")[0].rpartition("[")[2].removesuffix("]"): part for part in parts}
    return {name: f"## {part}".rstrip() for name, part in found.items()}


@pytest.mark.parametrize(
    "paper",
    only(["waferllm", "clusterfusion", "tokenweave", "recorded"], "clusterfusion", "tokenweave"),
)
def test_sections_are_what_is_printed(paper, written):
    for section in made(chosen([paper]), Servers(), lambda name: None):
        assert written[section.name] == "\n".join(section_lines(section)).rstrip()


def without_predictions(lines):
    """The cells of rows that no simulation changes: conditions, metric, published value."""
    return [line.split(" | ")[:3] for line in lines if line.startswith("| ")]


def test_sections_of_servers_have_the_rows_that_are_printed(written):
    names = [name for name in chosen(["layered"]) if name not in LONG]
    for section in made(names, FEW, lambda name: None):
        found = without_predictions(section_lines(section))
        assert without_predictions(written[section.name].splitlines()) == found


@pytest.mark.slow
def test_the_whole_page_is_what_is_printed():
    names = chosen([])
    assert page(made(names, Servers(), lambda name: None)) == page_of("docs/reproduction.md")


def test_the_page_has_every_section(written):
    assert set(builders(Servers())) <= set(written)


def test_the_command_prints_and_writes(tmp_path, capsys):
    assert main(["reproduce", "waferllm-7"]) == 0
    printed = capsys.readouterr().out
    assert "[waferllm-7]" in printed and "[waferllm-8]" not in printed
    file = tmp_path / "page.md"
    assert main(["reproduce", "waferllm-7", "--write", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == printed and capsys.readouterr().out == ""
    assert main(["reproduce", "waferllm-4", "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    assert all(one["source"] for one in (*section["inputs"], *section["constants"]))


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["waferllm-99"],
        ["waferllm-7", "--seeds", "0"],
        ["waferllm-7", "--processes", "999"],
        ["waferllm-7", "--json", "--write", "x"],
        ["waferllm-7", "--write", "nowhere/at/all.md"],
        ["--write", "nowhere/at/all.md"],  # before servers are simulated
        ["--write", "."],
    ],
)
def test_what_is_wrong_is_said(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 1
    assert capsys.readouterr().err.startswith("error[")
    assert list(tmp_path.iterdir()) == []
