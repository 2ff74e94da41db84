"""Device files that say only what they have otherwise than a device of the catalogue."""

import pytest

from meshc.devices import Number, device, load_device
from meshc.support.diagnostics import MeshcError

MINE = """
name = "mine"
like = "h200"
description = "another board"
clock_hz = {value = 1_500_000_000, unit = "Hz", kind = "datasheet", source = "V: page 3"}
memory_bytes = {value = 101_376, unit = "bytes", kind = "datasheet", source = "V"}

[sources]
V = "the vendor's manual"

[level.gpu]
hop_cycles = 500
"""


def loaded(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return load_device(path)


def test_what_is_measured_elsewhere_is_assumed(tmp_path):
    mine, other = loaded(tmp_path, MINE), device("h200")
    assert (mine.name, mine.fact("description")) == ("mine", "another board")
    assert mine.numbers["clock_hz"] == Number(1_500_000_000, "datasheet", "V: page 3")
    assert other.numbers["read_bytes_per_second"].kind == "calibrated"
    found = mine.numbers["read_bytes_per_second"]
    assert found == Number(4_578_000_000_000, "assumed", "as on h200")
    assert mine.numbers["global_memory_bytes"] == other.numbers["global_memory_bytes"]
    assert set(mine.numbers) == set(other.numbers)
    assert {n.kind for name, n in mine.numbers.items() if name != "clock_hz"} == {
        "assumed", "datasheet",
    }  # fmt: skip
    assert mine.fact("cuda_arch") == "sm_90a"


def test_levels_and_titles(tmp_path):
    mine, other = loaded(tmp_path, MINE), device("h200")
    links = mine.level_links["gpu"]
    assert links.numbers["hop_cycles"].value == 500
    assert links.numbers["words_per_cycle"] == other.level_links["gpu"].numbers["words_per_cycle"]
    named = {name: other.sources[name] for name in ("N", "M")}  # by numbers that were taken over
    assert mine.sources == named | {"V": "the vendor's manual"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"h200"', '"h201"', "'like' names no device of the catalogue: 'h201'"),
        ('"h200"', "[[]]", "'like' names no device of the catalogue: '[[]]'"),
        ("like", '"li\\u006be"', "'description' is missing"),
        ('"h200"', '"mine.toml"', "'like' names no device"),
        ("description", "# description", "'description' is missing"),
        ("hop_cycles", "hops", "unknown device key 'hops'"),
        ("[sources]\nV", "[more]\nsources", "unknown device key 'more'"),
        ("[level.gpu]\nhop_cycles = 500", "[level]\ngpu = 3", "'level' must be a table"),
        ("[sources]\nV = ", "sources = ", "'sources' must be a table"),
    ],
)
def test_faults_are_told(old, new, words, tmp_path):
    text = MINE.replace(old, new)
    if words == "'description' is missing":
        text = text.replace("description", "# description")
    with pytest.raises(MeshcError) as caught:
        loaded(tmp_path, text)
    found = [one.message for one in caught.value.diagnostics]
    assert any(words in message for message in found), found
