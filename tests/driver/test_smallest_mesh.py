"""``meshc run --target csl`` without --mesh: the smallest mesh that fits by the plans."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from reduced import each

import meshc.devices
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any, smallest_place
from meshc.driver.remedies import NO_ROOM
from meshc.support.diagnostics import Diagnostics, MeshcError

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny" / "llama-3h1"
DATA = Path(meshc.devices.__file__).parent / "data"
REQUEST = CompileRequest(target="csl", dtype="f32", seq=24)


def wafer(folder, side, memory):
    """A WSE-2 of ``side`` x ``side`` cores of ``memory`` bytes."""
    text = (DATA / "wse2.toml").read_text()
    for key, value in (("cores_x", side), ("cores_y", side), ("memory_bytes", memory)):
        text, found = re.subn(
            rf"(?m)^{key} = {{value = [0-9_]+", f"{key} = {{value = {value}", text
        )
        assert found == 1
    path = folder / "small.toml"
    path.write_text(text)
    return str(path)


def tiny():
    return load_any(str(TINY), Diagnostics())


@pytest.mark.parametrize("memory", each([15000, 18000], 2))
def test_the_next_smaller_mesh_is_refused(memory, tmp_path):
    request = replace(REQUEST, device=wafer(tmp_path, 12, memory))
    tried = []
    place = smallest_place(tiny(), request, lambda device, mesh: tried.append(mesh))
    side = int(re.fullmatch(r"r=1,y=(\d+),x=\1", place.mesh)[1])
    assert side > 1 and len(tried) == len(set(tried)) <= 7
    assert f"goes to {side}x{side} PEs" in place.words
    assert f"not to {side - 1}x{side - 1}: " in place.words
    compile_loaded(tiny(), replace(request, mesh=place.mesh, phase="decode"))
    smaller = f"r=1,y={side - 1},x={side - 1}"
    with pytest.raises(MeshcError) as caught:
        compile_loaded(tiny(), replace(request, mesh=smaller, phase="decode"))
    assert caught.value.diagnostics[0].code in NO_ROOM


def test_a_device_that_the_library_gives_is_the_one_that_is_searched(tmp_path):
    """Its name may be one of the catalogue, or none of it; its numbers count."""
    path = wafer(tmp_path, 12, 15000)
    given = meshc.devices.device(path)
    unlisted = replace(given, facts={**given.facts, "name": "unlisted"})
    places = [smallest_place(tiny(), replace(REQUEST, device=d)) for d in (path, given, unlisted)]
    assert len({place.mesh for place in places}) == 1
    assert [place.device for place in places] == [path, "wse2", "unlisted"]


def test_refusals_name_the_device_and_the_numbers(tmp_path):
    request = replace(REQUEST, device=wafer(tmp_path, 2, 11500))
    with pytest.raises(MeshcError) as caught:
        smallest_place(tiny(), request)
    (one,) = caught.value.diagnostics
    assert one.code == "does-not-fit" and "no square mesh of" in one.message
    assert any("bytes" in note for note in one.notes) and "--layers" in one.help


def test_another_reason_than_memory_is_told_as_it_is_and_ends_the_search(tmp_path):
    """Positions of so many tokens have more than 16 bits."""
    request = replace(REQUEST, device=wafer(tmp_path, 64, 1 << 30), seq=40_000)
    tried = []
    with pytest.raises(MeshcError) as caught:
        smallest_place(tiny(), request, lambda device, mesh: tried.append(mesh))
    assert caught.value.diagnostics[0].code == "csl-extent"
    assert len(tried) == 1


def test_a_model_without_steps_of_decoding_has_no_place():
    with pytest.raises(MeshcError) as caught:
        smallest_place(load_any(str(ROOT / "examples" / "mlp.mesh"), Diagnostics()), REQUEST)
    assert caught.value.diagnostics[0].code == "no-tokens"


@pytest.mark.models
def test_one_command_chooses_device_and_mesh(capsys):
    facts = json.loads((TINY / "expected.json").read_text())
    words = ["run", str(TINY), "--target", "csl", "--backend", "csl-sim", "--dtype", "f32"]
    words += ["--seq", "12", "--prompt-ids", ",".join(map(str, facts["prompt_ids"]))]
    assert main([*words, "--max-tokens", "2", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["tokens"] == facts["tokens"][:2] and found["mesh"] == "r=1,y=2,x=2"
    assert "remark[mesh]" in said.err and "2x2 PEs of wse3; not to 1x1: " in said.err
