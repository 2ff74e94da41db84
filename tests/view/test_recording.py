"""What a compile records: the same bytes whenever and wherever, and modules that read back."""

import json
import shutil

import pytest
from viewed import COMPILES, recorded

from meshc.cli import main
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.spans import Source


@pytest.mark.parametrize("name", ["csl", "cuda"])
def test_the_same_compile_records_the_same_bytes(name, tmp_path, monkeypatch):
    model, *flags = COMPILES[name]
    shutil.copy(model, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "tiny_llama.mesh", *flags, "--record", "-o", "again"]) == 0
    assert (tmp_path / "again" / "record.json").read_bytes() == (
        recorded(name) / "record.json"
    ).read_bytes()


@pytest.mark.parametrize("name", COMPILES)
def test_modules_read_back_and_steps_lead_to_the_last(name):
    record = json.loads((recorded(name) / "record.json").read_text())
    for phase in record["phases"]:
        for module in phase["modules"]:
            assert print_module(parse_module(Source("text", module["text"]))) == module["text"]
        numbers = [step["module"] for step in phase["steps"]]
        assert numbers == sorted(numbers) and {*numbers} == {*range(len(phase["modules"]))}
        assert [step["pass"] == "" for step in phase["steps"]] == [
            number == 0 for number in range(len(numbers))
        ]


def test_steps_are_the_passes_that_ran(capsys, tmp_path):
    given = COMPILES["csl"]
    assert main(["compile", *given, "--json"]) == 0
    ran = [one["pass"] for one in json.loads(capsys.readouterr().out)["passes"]]
    record = json.loads((recorded("csl") / "record.json").read_text())
    assert [step["pass"] for step in record["phases"][0]["steps"][1:]] == ran


def test_remarks_know_their_pass(capsys):
    record = json.loads((recorded("csl") / "record.json").read_text())
    by_code = {message["code"]: message for message in record["messages"]}
    assert by_code["routes"]["pass"] == "allocate-routes"
    place = by_code["products-merged"]["place"]
    source = record["sources"][place[0]]
    assert "@" in source["text"].split("\n")[place[1] - 1]


def test_a_record_needs_a_directory(capsys):
    assert main(["compile", *COMPILES["mlp"], "--record"]) == 1
    assert "--record writes into a directory" in capsys.readouterr().err


def test_each_kernel_that_reads_prompts_stands_beside_its_text(tmp_path):
    given = ["smollm2-135m", "--layers", "2", "--seq", "138", "--target", "cuda", "--gpus", "2"]
    folder = tmp_path / "out"
    assert main(["compile", *given, "--device", "h200", "--record", "-o", str(folder)]) == 0
    record = json.loads((folder / "record.json").read_text())
    files = {"decode": "step.cu", "long_prompt": "long_prompt.cu", "prompt": "prompt.cu"}
    found = {phase["phase"]: phase for phase in record["phases"]}
    assert list(found) == list(files)
    for name, file in files.items():
        text = (folder / file).read_text().split("\n")
        assert list(found[name]["emitted"]) == [file] and found[name]["emitted"][file]
        assert all(last <= len(text) for _, _, last in found[name]["emitted"][file])
    lengths = {name: f"len = 1..{n}" for name, n in (("long_prompt", 64), ("prompt", 16))}
    for name, words in lengths.items():
        assert words in found[name]["modules"][-1]["text"]
