"""Plans of models on wafers, beside what compiling them gives."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.capacity import capacity
from meshc.driver.planning.best_mesh import best_mesh, weights_of_core
from meshc.driver.planning.cures import cures_on_mesh
from meshc.driver.planning.plans import PlanRequest, plan
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[2] / "data" / "tiny"
WAFER = device("wse2")
NARROW = WAFER.with_numbers(memory_bytes=22_528)
CASES = [
    ("decode", WAFER, "4x4", 64),
    ("decode", NARROW, "2x2", 64),
    ("decode", NARROW, "3x3", 512),
    ("prefill", WAFER, "4x4", 32),
    ("prefill", WAFER, "4x4", 64),
    ("prefill", WAFER, "3x3", 512),
]


def loaded(model="llama-9h3-tied"):
    return load_any(str(TINY / model), Diagnostics())


def asked(mesh, phase, wafer, fields):
    return CompileRequest(device=wafer, mesh=mesh, phase=phase, **{"seq": 64, **fields})


def planned(mesh, phase="decode", wafer=WAFER, **fields):
    """The whole plan."""
    return plan(loaded(), PlanRequest(asked(mesh, phase, wafer, fields)))


def made(mesh, phase="decode", clock=False, wafer=WAFER, **fields):
    """The plan of a phase, without what would fit and what caches hold."""
    return phase_on_mesh(MeshPhase(loaded(), phase, asked(mesh, phase, wafer, fields)), clock)


def compiled(mesh, phase="decode", wafer=WAFER, **fields):
    """The report of the emitted program of one phase, or why there is none."""
    fields = {"seq": 64, "target": "csl", "device": wafer, "mesh": mesh, **fields}
    try:
        program = compile_loaded(loaded(), CompileRequest(phase=phase, **fields))
    except MeshcError as error:
        return error.diagnostics[0]
    return json.loads(program.files["report.json"])


@pytest.mark.parametrize(("phase", "wafer", "mesh", "seq"), CASES)
def test_a_plan_says_what_compiling_does(phase, wafer, mesh, seq):
    found = made(mesh, phase, wafer=wafer, seq=seq)
    report = compiled(mesh, phase, wafer, seq=seq)
    if not found.fits:
        assert found.refused.code == report.code and found.refused.message == report.message
        assert found.room.left < 0 and found.violates["M"]
        return
    assert found.room.left == report["memory"]["left"]
    assert found.room.uses["scratch"] == report["memory"]["scratch"]
    assert found.room.buffers == pytest.approx(report["memory"]["buffers"], abs=6)
    assert found.regions == len(report.get("regions", [1]))
    inputs = report["queues"]["input"]
    assert found.routes.queues <= len(inputs["used"]) <= found.routes.free_queues
    assert found.routes.colors <= len(report["colors"]["used"])


def test_some_cases_fit_and_some_do_not():
    fits = [made(m, p, wafer=w, seq=s).fits for p, w, m, s in CASES]
    assert True in fits and False in fits


def test_what_is_short_of_scratch_and_code_is_short_by_what_the_refusal_says():
    found = made("4x4", "prefill")
    assert found.refused.code == "csl-memory-full"
    assert f"{-found.room.left} bytes short" in found.refused.message


def test_the_clock_is_that_of_the_emitted_program():
    found = made("4x4", clock=True)
    report = compiled("4x4")
    assert found.prediction.total == pytest.approx(report["predicted_cycles"], abs=1)
    assert found.prediction.bound == report["bound_cycles"] < found.prediction.total
    assert found.prediction.model == "clock"


def test_what_does_not_fit_has_no_clock():
    found = made("4x4", "prefill", clock=True)
    assert not found.fits and found.prediction is None and "does not fit" in found.silent


def test_what_would_fit_does_and_a_layer_more_does_not():
    (found,) = planned("3x3", wafer=NARROW, seq=512).phases
    flags = dict(text.removeprefix("--").split() for text in found.cures)
    assert flags.keys() == {"mesh", "seq", "layers"}
    for fields in ({"seq": int(flags["seq"])}, {"layers": int(flags["layers"])}):
        assert isinstance(compiled("3x3", wafer=NARROW, **{"seq": 512, **fields}), dict)
    more = int(flags["layers"]) + 1
    assert not isinstance(compiled("3x3", wafer=NARROW, seq=512, layers=more), dict)


def test_weights_that_stay_quantised_would_fit():
    wafer = WAFER.with_numbers(memory_bytes=1_200_000, cores_x=6, cores_y=6)
    request = asked("6x6", "decode", wafer, {"layers": 2})
    phase = MeshPhase(load_any("smollm2-135m", Diagnostics()), "decode", request)
    found = cures_on_mesh(phase, phase_on_mesh(phase))
    assert "--keep-quantised q8_0" in found
    kept = MeshPhase(phase.loaded, "decode", replace(request, keep_quantised=("all=q8_0",)))
    again = phase_on_mesh(kept)
    assert again.fits and any("decoding" in text for text in again.prediction.left_out)


@pytest.mark.slow
def test_caches_hold_what_the_question_about_them_says():
    (found,) = planned("4x4", wafer=NARROW).phases
    request = CompileRequest(device=NARROW, mesh="4x4", kv="cyclic")
    assert found.kv_tokens == capacity(loaded(), request).tokens > 64


@pytest.mark.slow
def test_both_phases_are_in_as_many_regions_on_one_mesh():
    found = planned("2x2", "both", wafer=NARROW.with_numbers(memory_bytes=47_000), seq=8)
    assert found.fits and len({phase.regions for phase in found.phases}) == 1
    assert found.transition.unit == "cycles" and found.transition.amount > 0


def test_prompts_and_steps_have_their_tokens():
    prefill, decode = made("4x4", "prefill", seq=32), made("4x4", batch=3)
    assert (prefill.tokens, decode.tokens) == (32, 3)
    rate = decode.tokens / (decode.prediction.total / WAFER.clock_hz)
    assert decode.tokens_per_second == pytest.approx(rate)


def test_letters_have_reasons():
    found = made("6x6", algo=("all_reduce=pipeline",))
    assert "pipeline over the 6 cores" in found.violates["L"]
    found = made("4x4", algo=("all_reduce=k_tree:2",))
    assert "P" not in found.violates
    idle = made("60x4", wafer=device("ideal"))
    assert idle.fits and idle.room.size is None and idle.room.left is None
    assert "F = 50 on the 60 parts" in idle.violates["P"]


@pytest.mark.parametrize(("mesh", "places"), [("4x4", 1), ("3x5", 1), ("2x2", 2)])
def test_weights_of_a_core_are_known_without_a_program(mesh, places):
    fields = {} if places == 1 else {"wafer": NARROW.with_numbers(cores_x=4, cores_y=2)}
    found = MeshPhase(loaded(), "decode", asked(mesh, "decode", fields.get("wafer", WAFER), {}))
    weights = weights_of_core(found.chosen, places)
    assert weights <= found.fit().uses["weights"] <= weights + 64


def test_the_best_mesh_holds_the_program_and_none_that_was_tried_is_faster():
    tried, small = [], WAFER.with_numbers(cores_x=5, cores_y=5)
    request = asked("", "decode", small, {})
    best = best_mesh(loaded(), "decode", request, tried.append)
    found = made(best, wafer=small)
    assert found.fits and len(tried) > 5
    for text in tried[:-2:3]:
        other = made(text.rpartition(" ")[2], wafer=small)
        assert not other.fits or other.prediction.total >= found.prediction.total
