"""The edits that CONTRIBUTING.md describes touch the files that it names, and no others: a function
of elements 6, a family 3, a device 1."""

import re
from functools import cache

import pytest
from sources import PACKAGE, ROOT

from meshc.frontend.families import family_names
from meshc.ir.functions import FUNCTIONS

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SUFFIXES = {".py", ".cuh", ".jinja", ".toml", ".mesh"}
MOST = {"A function of elements": 6, "A family of models": 3, "A device": 1, "A microkernel": 10}


def named(edit):
    """The files that the page names for an edit."""
    section = PAGE.partition(f"### {edit}\n")[2].partition("\n#")[0]
    return re.findall(r"^\| `(meshc/[^`]+)`", section, re.MULTILINE)


REFUSING = "meshc/backends/ttlang/local_ops.py"


@cache
def texts():
    """Every product file that says something of a part by its name."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in SUFFIXES and "published" not in path.parts
    }


def that_say(word):
    """The files that say ``word``, also as a private name, but for a target that refuses what it
    does not have."""
    said = re.compile(rf"(?<![A-Za-z0-9])_?{word}(?![A-Za-z0-9])")
    found = {name for name, text in texts().items() if said.search(text)}
    assert REFUSING in PAGE
    return found - {REFUSING}


@pytest.mark.parametrize("edit", MOST)
def test_the_files_exist_and_are_few(edit):
    files = named(edit)
    assert len(files) == len(set(files)) == MOST[edit]
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize(
    ("edit", "word"), [("A function of elements", "quick_gelu"), ("A microkernel", "inverse_rms")]
)
def test_they_are_those_that_say_its_name(edit, word):
    assert that_say(word) == set(named(edit))


def lacking(functions, read):
    """A sentence for each file that says nothing of a function of elements."""
    return [
        f"{file} says nothing of the function of elements '{name}'"
        for file in named("A function of elements")
        for name in functions
        if not re.search(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", read(file))
    ]


def test_every_function_of_elements_is_known_everywhere():
    assert lacking(FUNCTIONS, with_siblings) == []


def with_siblings(file):
    """The text of a file; of CSL, whose functions of elements stand in several, of all of these."""
    folder = file.rpartition("/")[0]
    several = [one for one in texts() if folder.endswith("csl/kernels") and one.startswith(folder)]
    return "".join(texts()[one] for one in several or [file])


@pytest.mark.parametrize("file", named("A function of elements"))
def test_an_entry_that_is_missing_is_a_sentence(file):
    """Of a function that stands in all files but one."""

    def read(name):
        return texts()[name].replace("quick_gelu", "") if name == file else texts()[name]

    (sentence,) = lacking(["quick_gelu"], read)
    assert sentence == f"{file} says nothing of the function of elements 'quick_gelu'"


@pytest.mark.every_case
@pytest.mark.parametrize("name", family_names())
def test_a_family_is_three_files(name):
    folder = PACKAGE / "frontend" / "families" / name
    files = [file.rpartition("/")[2] for file in named("A family of models")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)


def test_no_program_text_knows_the_family_of_the_page():
    """Tokenizers and encodings of some are known by name; those of a family like cohere are not."""
    programs = {file: text for file, text in texts().items() if file.endswith(".py")}
    assert [file for file, text in programs.items() if '"cohere"' in text] == []


def test_no_file_names_a_device_of_the_page():
    """The catalogue is a folder. (The usual devices of commands and messages do have names.)"""
    assert {file for file, text in texts().items() if '"gh200"' in text} == {
        "meshc/devices/data/gh200.toml"
    }
