"""Steps of many programs, and small checkpoints, as a GPU is to run them: on a fake driver, whose
kernels run in the executor or compute nothing. Times mean nothing here, and none is looked at."""

import argparse
import json
import re
from pathlib import Path

import programs
import pytest
import steps
import tiny
import tracing
from kernels import Cubins
from prepared import Prepared, opened

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import CXX, QUICK, Library
from meshc.support.diagnostics import fail

DATA = Path(__file__).parents[1] / "data"
MIXTRAL = DATA / "tiny_experts" / "mixtral-5x2"

pytestmark = [
    pytest.mark.cuda_compiler,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]


@pytest.fixture
def case(monkeypatch):
    """A step of a mixture, with a chunk of a prompt."""
    found = steps.Case("small", str(MIXTRAL), (3, 5), behind=(2,))
    monkeypatch.setattr(steps, "CASES", (found,))
    return found


@pytest.mark.slow
def test_a_case_is_prepared_and_timed(case, fake, in_executor, tmp_path, capsys):
    in_executor(programs)
    steps.prepare(tmp_path / "made", [case])
    steps.prepare(tmp_path / "made", [case])  # which is there
    assert capsys.readouterr().out == "small\n"
    out = tmp_path / "out"
    out.mkdir()
    options = argparse.Namespace(measure=tmp_path / "made", out=out, driver=fake.path, repeats=1)
    steps.time_case(options, case)
    found = steps.Records(out).read()
    assert [(r["kind"], r["cached"]) for r in found] == [("step", 3), ("step", 5), ("chunk", 2)]
    for one in found[:2]:
        assert one["equal"] == one["runs"] and one["finite"] and one["largest"] > 0
        assert one["predicted"] > 0 and one["bytes"] > 0
    lines = list(steps._table(found))
    assert len(lines) == 3 and "10/10" in lines[0] and "16 tokens" in lines[2]


@pytest.mark.slow
def test_a_batch_of_tokens_is_prepared_and_timed(fake, in_executor, tmp_path):
    """Two requests with a token each, and a third with all that are left."""
    case = steps.Case("mixed", str(MIXTRAL), (3, 5), batch=3, options=steps._mixed(8))
    in_executor(programs)
    steps.prepare(tmp_path / "made", [case])
    out = tmp_path / "out"
    out.mkdir()
    options = argparse.Namespace(measure=tmp_path / "made", out=out, driver=fake.path, repeats=1)
    steps.time_case(options, case)
    found = steps.Records(out).read()
    assert [(r["kind"], r["cached"]) for r in found] == [("step", 3), ("step", 5)]
    for one in found:
        assert one["equal"] == one["runs"] and one["finite"] and one["largest"] > 0


def test_a_trace_has_each_phase_of_each_layer(case):
    """The text says when the first thread of a block comes to a phase, and when it has what
    products or staged words need."""
    made = meshc.compile(str(MIXTRAL), target="cuda", dtype="f16", seq=8, device="h200")
    program = from_json(made.files["manifest.json"])
    given = Prepared(program, {"step.cu": made.files["step.cu"]}, Cubins(Path("none")))
    found = tracing.traced(given)
    text, (launch,) = found.texts["step.cu"], found.program.after
    names = text.split("\n", 1)[0].removeprefix("// phases: ").split(" ")
    assert names[0] == "x" and names[-1] == "result" and "attend" in names
    notes = re.findall(r"trace\[\((\w+) \* (\d+) \+ (\d+)\)", text)
    slots = {int(slot) for *_, slot in notes}
    assert {2 * n for n in range(len(names) + 1)} <= slots
    assert {int(count) for _, count, _ in notes} == {2 * len(names) + 1}
    assert launch.arguments[-1] == "trace" and text.count("mc_now()") == len(notes) + 1


def test_folders_are_of_cases(case):
    assert steps._named("small@other").name == "small@other" and steps._named("none") is None


@pytest.fixture
def prepared_model(tmp_path):
    tiny.prepare(tmp_path / "model", MIXTRAL, "f16", 3, 16)
    return tmp_path / "model"


@pytest.mark.slow
def test_what_a_gpu_computes_is_held_against_the_graph(prepared_model, fake):
    """Kernels in the executor are right; those that compute nothing are not."""
    with Device(library=fake.path) as device:
        assert not tiny.check(device, prepared_model)["right"]
    found = opened(prepared_model, check=False)
    for text in found.texts.values():
        cubin = found.cubins.find(text)
        library = Library(text, toolchain=QUICK)._library
        fake.know(cubin, lambda name, at=library: getattr(at, f"run_{name}"))
    with Device(library=fake.path) as device:
        one = tiny.check(device, prepared_model)
    assert one["right"] and one["same"] and one["batch"] == 3 and 0 < one["steps"] < 1e-2


def test_a_process_tells_what_it_found(prepared_model, fake, monkeypatch, tmp_path, capsys):
    kept = tmp_path / "found.json"
    words = ["--check", str(prepared_model.parent), "--driver", fake.path, "--json", str(kept)]
    assert tiny.main(words) == 1
    assert capsys.readouterr().out.endswith("1 checked, 1 wrong\n")
    (found,) = json.loads(kept.read_text())
    assert found["name"] == "model" and found["right"] is False

    def refuse(device, folder):
        fail("cuda-fault", "the kernel failed")

    monkeypatch.setattr(tiny, "check", refuse)
    assert tiny.main(words) == 1
    assert "the kernel failed" in json.loads(kept.read_text())[0]["refused"]
