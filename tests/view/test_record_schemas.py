"""Records and timelines are as their schemas say."""

import json

import pytest
from json_schema import faults
from viewed import COMPILES, recorded

from meshc.cli import main
from meshc.driver.record_files import FORMAT
from meshc.support.schemas import json_schema

SCHEMAS = {name: json_schema(name) for name in ("record", "timeline")}


@pytest.mark.parametrize("name", COMPILES)
def test_records_are_as_the_schema_says(name):
    record = json.loads((recorded(name) / "record.json").read_text())
    assert faults(record, SCHEMAS["record"]) == []


def test_recorded_schedules_are_as_the_schemas_say(tmp_path):
    folder = tmp_path / "out"
    assert main(["schedule", "llama-3.3-70b", "--tokens", "512", "--record", str(folder)]) == 0
    for name, schema in SCHEMAS.items():
        assert faults(json.loads((folder / f"{name}.json").read_text()), schema) == []


def test_schemas_are_of_this_format_and_see_faults():
    record = json.loads((recorded("mlp") / "record.json").read_text())
    for name, schema in SCHEMAS.items():
        assert schema["properties"]["format"] == {"const": FORMAT}
        assert f"urn:meshc:{name}:{FORMAT}" == schema["$id"]
    record["phases"][0]["steps"][0]["module"] = "first"
    record["more"] = 1
    assert len(faults(record, SCHEMAS["record"])) == 2
