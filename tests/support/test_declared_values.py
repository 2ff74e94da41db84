"""Values of files as what dataclasses declare: what fits is made, what does not is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from meshc.support.declared_values import declared, toml_of


@dataclass(frozen=True)
class Part:
    """A part with a number that is above 0."""

    number: int
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"no part has {self.number}")


@dataclass(frozen=True)
class Whole:
    """Each kind of annotation once."""

    name: str
    parts: tuple[Part, ...]
    place: tuple[int, str] = (0, "")
    named: Mapping[str, Part] = field(default_factory=dict)
    first: Part | None = None
    value: bool | int | str | None = None
    kind: Literal["a", "b"] = "a"
    keys: frozenset[str] = frozenset()
    free: object = None


def test_what_fits_is_made():
    value = {
        "name": "n", "parts": [{"number": 1}, {"number": 2, "ratio": 3}], "place": [4, "x"],
        "named": {"p": {"number": 5}}, "first": {"number": 6}, "value": True, "kind": "b",
        "keys": ["k", "k"], "free": {"any": [1]},
    }  # fmt: skip
    parts = (Part(1), Part(2, 3))
    named, keys = {"p": Part(5)}, frozenset("k")
    whole = Whole("n", parts, (4, "x"), named, Part(6), True, "b", keys, {"any": [1]})
    assert declared(Whole, value) == whole
    assert declared(Whole, {"name": "n", "parts": (Part(1),)}) == Whole("n", (Part(1),))
    assert type(declared(Part, {"number": 1, "ratio": 3}).ratio) is int  # as it is written
    assert declared(dict[str, Part], {"p": {"number": 1}}) == {"p": Part(1)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 3}, "name is 3, not a text"),
        ({"extra": 3}, "file.toml has an unknown 'extra'"),
        ({"parts": "no"}, r"parts is 'no', not a list"),
        ({"parts": [{}]}, r"file.toml.parts\[0\] has no 'number'"),
        ({"parts": [{"number": True}]}, r"parts\[0\].number is True, not a whole number"),
        ({"parts": [{"number": 1.0}]}, r"number is 1.0, not a whole number"),
        ({"parts": [{"number": 0}]}, "no part has 0"),
        ({"parts": [{"number": 1, "ratio": "1"}]}, "ratio is '1', not a number"),
        ({"place": [1]}, r"place is \[1\], not a list of 2"),
        ({"place": ["x", 1]}, r"place\[0\] is 'x', not a whole number"),
        ({"named": []}, r"named is \[\], not a table"),
        ({"named": {"p": 1}}, "named.p is 1, not a table"),
        ({"first": {"number": "x"}}, "first.number is 'x', not a whole number"),
        ({"first": 1}, "first is 1, not a table or null"),
        ({"value": 1.5}, "value is 1.5, not true or false or a whole number or a text or null"),
        ({"kind": "c"}, "kind is 'c', not 'a' or 'b'"),
        ({"keys": [1]}, r"keys\[0\] is 1, not a text"),
    ],
)
def test_what_does_not_fit_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        declared(Whole, {"name": "n", "parts": []} | changes, "file.toml")
    with pytest.raises(ValueError, match="the file has no 'parts'"):
        declared(Whole, {"name": "n"})


def test_an_annotation_that_no_file_has_is_a_fault_of_the_program():
    with pytest.raises(TypeError, match="no file has a"):
        declared(set[str], [])


def test_a_file_of_a_package_is_read_once():
    first = toml_of("meshc.devices", "data/wse2.toml")
    assert first["name"]["value"] if isinstance(first["name"], dict) else first["name"] == "wse2"
    assert toml_of("meshc.devices", "data/wse2.toml") is first
