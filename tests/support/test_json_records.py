"""Records of what is printed, as JSON schemas: each way to say what stands somewhere."""

import pytest
from json_schema import faults

from meshc.support.declared_values import toml_of
from meshc.support.schemas import _Records, json_schema, schema_names

SAID = {
    "point": {"x": "integer 0..9", "y?": "number | null: up", "*": "[string] 1..2"},
    "named": {"...": "point", "name": "'a' | 'b'", "x": "16"},
    "tree": {"below": "[tree]", "code": "/^sm_/", "more": "{any}"},
}
LEAF = {"below": [], "code": "sm_9", "more": {"k": 1}}
KINDS = [
    ("point", {"x": 9}, [{}, {"x": 10}, {"x": -1}, {"x": 1, "y": "a"}, {"x": 1, "z": []}]),
    ("point", {"x": 0, "y": None, "z": ["a"]}, [{"x": 0, "z": ["a", "b", "c"]}]),
    ("named", {"x": 16, "name": "b"}, [{"x": 3, "name": "b"}, {"x": 16, "name": "c"}]),
    ("named | null", None, [1, {"name": "a"}]),
    ("{[boolean | integer]}", {"k": [True, 2]}, [[True], {"k": ["a"]}, {"k": 1}]),
    ("null | tree", {**LEAF, "below": [LEAF]}, [{**LEAF, "code": "9"}, {**LEAF, "below": [{}]}]),
]


@pytest.mark.parametrize(("kind", "fits", "not_these"), KINDS)
def test_kinds(kind, fits, not_these):
    schema = _Records(SAID, {}).whole(kind)
    assert faults(fits, schema) == []
    for other in not_these:
        assert faults(other, schema) != [], other


def test_descriptions():
    schema = _Records(SAID, {}).whole("[point]: where")
    assert schema["description"] == "where"
    assert schema["$defs"]["point"]["properties"]["y"]["description"] == "up"


@pytest.mark.parametrize("wrong", ["integer 0..9 string", "string; null", "[string"])
def test_what_is_no_kind(wrong):
    with pytest.raises((ValueError, IndexError)):
        _Records(SAID, {}).whole(wrong)


def test_every_record_is_used():
    shared = toml_of("meshc.support.schemas", "shared.toml")
    unused = set(shared)
    for name in schema_names():
        said = toml_of("meshc.support.schemas", f"{name}.toml")
        records = _Records(said, shared)
        records.whole(said["is"])
        assert {key for key, one in said.items() if isinstance(one, dict)} <= records.named
        assert json_schema(name)["$id"].startswith("urn:meshc:")
        unused -= records.named
    assert unused == set()
