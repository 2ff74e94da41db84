"""What ``--json`` prints is as its schema says, whatever the command."""

import json
from copy import deepcopy

import pytest
from json_schema import faults

from meshc.cli import main
from meshc.cli.command_parser import parser
from meshc.support.schemas import json_schema, schema_names

TINY = "tests/data/tiny/llama-rope3"
MLP = "examples/mlp.meshir"
SERVED = ["schedule", "qwen3-30b-a3b", "--requests", "5", "--seeds", "1"]
CHEAP = [
    ["compile", "examples/mlp.mesh", "--mesh", "2x2", "--compile-to", "mesh", "-o", "{}/out"],
    ["opt", MLP, "--passes", "canonicalize"],
    ["opt", MLP, "-o", "{}/mlp.meshir"],
    ["devices"],
    ["devices", "wse2"],
    ["devices", "h100x8"],
    ["passes"],
    ["passes", "partition"],
    ["passes", "tile.gemm"],
    ["explain"],
    ["explain", "bad-mesh"],
    ["estimate", "--plmr", "--mesh", "8x8", "--device", "wse2", "64", "64", "64"],
    ["schedule", "llama-3.3-70b", "--tokens", "2048"],
]
OTHERS = [
    ["compile", TINY, "--target", "csl", "--mesh", "9x9"],
    ["run", TINY, "--prompt-ids", "5,17", "--max-tokens", "2", "--mesh", "2x2"],
    ["run", TINY, *["--prompt-ids", "5"] * 2, "--max-tokens", "2", "--mesh", "2x2"],
    ["estimate", TINY, "--device", "wse2", "--mesh", "4x4"],
    ["estimate", TINY, "--device", "wse2", "--mesh", "1x1", "--seq", "4096"],
    ["estimate", TINY, "--device", "blackhole"],
    ["estimate", "smollm2-135m", "--device", "h200"],
    ["estimate", "llama-3-8b", "--device", "h100x8"],
    ["estimate", TINY, "--kv", "--device", "wse2", "--mesh", "4x4"],
    ["estimate", TINY, "--phases", "--device", "wse3", "--mesh", "9x9", "--seq", "32"],
    ["tune", TINY, "--device", "wse2", "--phase", "decode"],
    ["tune", "smollm2-135m", "--device", "h200"],
    [*SERVED, "--rate", "1.4"],
    [*SERVED, "--rate", "1.4", "--rate", "2"],
    [*SERVED, "--rate", "1.4", "--auto"],
    ["serve-trace", TINY, "--mesh", "2x2", "--weights", TINY, "--trace", "tests/data/trace.csv"],
    ["reproduce", "tokenweave"],
]
SEVERAL = [*CHEAP, *(pytest.param(words, marks=pytest.mark.slow) for words in OTHERS)]
WITHOUT_RUNS = {"import-torch", "diff", "view"}
"""Held against their schemas elsewhere here, or where torch is (tests/e2e)."""


schema = json_schema


def printed(words, capsys, code=0):
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def commands_with_json():
    (choices,) = [a.choices for a in parser()._actions if getattr(a, "choices", None)]
    return {name for name, one in choices.items() if "--json" in one._option_string_actions}


def test_every_command_has_a_schema_and_a_run():
    names = commands_with_json()
    assert len(names) >= 14 and {schema(name)["$id"] for name in names} == {
        f"urn:meshc:json:{name.replace('-', '_')}:1" for name in names
    }
    assert names == {words[0] for words in (*CHEAP, *OTHERS)} | WITHOUT_RUNS
    assert set(schema_names()) == names | {"errors", "manifest", "record", "timeline", "fabric"}


@pytest.mark.parametrize("words", SEVERAL, ids=" ".join)
def test_what_is_printed_is_as_the_schema_says(words, capsys, tmp_path):
    found = printed([word.format(tmp_path) for word in words], capsys)
    said = schema(words[0])
    assert faults(found, said) == []
    for key in found:  # schemas that would take anything are none
        less = {name: value for name, value in found.items() if name != key}
        if words != ["devices", words[-1]]:
            assert faults(less, said) != [], key
    assert faults({**found, "more": {"of": {"this": [1]}}}, said) != [] or words[0] == "devices"


def test_pages_and_differences(capsys, tmp_path):
    folders = [str(tmp_path / name) for name in "ab"]
    for folder, mesh in zip(folders, ("1x2", "2x1"), strict=True):
        record = ["--compile-to", "mesh", "--record", "-o", folder]
        printed(["compile", "examples/mlp.mesh", "--mesh", mesh, *record], capsys)
    assert faults(printed(["view", folders[0]], capsys), schema("view")) == []
    for more in ([], ["--ir"]):
        assert faults(printed(["diff", *folders, *more], capsys), schema("diff")) == []


def test_errors(capsys):
    found = printed(["compile", "no-such-model"], capsys, code=1)
    assert faults(found, schema("errors")) == []
    worse = deepcopy(found)
    worse["errors"][0]["severity"] = "catastrophe"
    assert faults(worse, schema("errors")) != []
