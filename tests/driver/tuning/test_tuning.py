"""Tunings beside the plans of their configurations, and files from which they go on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.planning.best_mesh import best_mesh
from meshc.driver.planning.plans import PlanRequest, plan
from meshc.driver.tuning import configurations
from meshc.driver.tuning.configurations import Configuration, Job, Outcome, outcome_of
from meshc.driver.tuning.fronts import MEASURES, front, taken
from meshc.driver.tuning.tuner import TuneRequest, tune
from meshc.support.diagnostics import Diagnostics, InternalError, MeshcError
from meshc.support.workers import IN_TURN, Processes, unkept

TINY = str(Path(__file__).parents[2] / "data" / "tiny" / "llama-9h3-tied")
WAFER = device("wse2")
SMALL = WAFER.with_numbers(cores_x=6, cores_y=6)


def loaded():
    return load_any(TINY, Diagnostics())


def asked(where, phase="decode", **fields):
    return CompileRequest(device=where, phase=phase, **{"seq": 64, **fields})


def tuned(where, phase="decode", results=None, workers=IN_TURN, compiled=None, **space):
    request = TuneRequest(asked(where, phase, **(compiled or {})), results=results, **space)
    return tune(loaded(), request, workers)


def planned(where, own, **fields):
    """What ``meshc estimate`` says of a configuration."""
    request = asked(where, own.phase, mesh=own.mesh, batch=own.batch, algo=own.algo, **fields)
    if own.cluster:
        request = replace(request, cluster=own.cluster, persistent=True)
    return plan(loaded(), PlanRequest(request, own.gpus or None)).phases[0]


def check_best(where, phase):
    """The best of ``phase`` is what is planned of it, and nothing that was tried is faster."""
    best, made = phase.best, planned(where, phase.best.configuration)
    assert best.seconds == pytest.approx(made.prediction.seconds)
    assert best.tokens_per_second == pytest.approx(made.tokens_per_second)
    assert (best.fits, best.needed, best.left) == (made.fits, made.room.needed, made.room.left)
    assert best.regions == made.regions
    usable = [one for one in phase.tried if one.usable]
    assert best.tokens_per_second == max(one.tokens_per_second for one in usable)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 2)])
def test_what_is_best_is_what_is_planned_of_it(seed):
    random = np.random.default_rng(seed)
    phase = "decode" if seed else "prefill"
    sizes = random.integers(2, 6, (2, 2))
    meshes = tuple(dict.fromkeys(f"{w}x{h}" for w, h in sizes))
    (found,) = tuned(WAFER, phase, meshes=meshes).phases
    assert {one.configuration.mesh for one in found.tried} == {*meshes}
    assert found.fits
    check_best(WAFER, found)


@pytest.mark.slow
def test_meshes_that_are_looked_for_hold_the_automatic_one():
    (found,) = tuned(SMALL, compiled={"algo": ("all_reduce=ring",)}).phases
    request = asked(SMALL, algo=("all_reduce=ring",))
    mesh = best_mesh(loaded(), "decode", request, lambda _: None)
    (own,) = (one for one in found.tried if one.configuration.mesh == mesh)
    assert own.fits and found.best.seconds <= own.seconds
    assert all(one.configuration.algo == () for one in found.tried)
    shapes = {one.configuration.mesh for one in found.tried}
    assert {"6x6", "3x3"} <= shapes and any(len({*mesh.split("x")}) == 2 for mesh in shapes)


def test_steps_of_several_requests_take_more_regions():
    (found,) = tuned(WAFER, meshes=("3x3",), batches=(1, 6)).phases
    wider = [one for one in found.tried if "=" in one.configuration.mesh]
    assert wider and all(one.configuration.batch == 6 and one.fits for one in wider)
    assert all(one.regions == 1 for one in found.tried if one not in wider)
    assert max(one.regions for one in wider) == loaded().config.layers
    assert all(one.units == 9 * one.regions for one in found.tried)
    alone = [o for o in found.tried if o.configuration.batch == 6 and o not in wider]
    assert found.best in wider and found.best.seconds < min(one.seconds for one in alone)


def test_a_gpu_has_requests_and_clusters():
    (found,) = tuned("h200", gpus=(1, 2), batches=(2,)).phases
    ways = {(o.configuration.gpus, o.configuration.cluster) for o in found.tried}
    assert ways == {(1, 0), (2, 0), (1, 2), (1, 4), (1, 8)}
    check_best("h200", found)
    timed = [one for one in found.tried if one.configuration.cluster and one.seconds]
    for one in timed[:1]:
        made = planned("h200", one.configuration).prediction
        assert one.seconds == pytest.approx(made.seconds)


def test_a_node_has_numbers_of_gpus():
    model = load_any("smollm2-135m", Diagnostics())
    found = tune(model, TuneRequest(asked("h100x4", "both"))).phases
    assert [one.phase for one in found] == ["prefill", "decode"]
    assert {o.configuration.gpus for o in found[0].tried} == {1, 2, 4}
    assert {o.configuration.batch for o in found[1].tried} == {1, 4, 16, 64}


def test_where_none_fits_the_front_is_as_if_it_did():
    tight = WAFER.with_numbers(memory_bytes=16_000)
    pinned = {"seq": 512, "algo": ("all_reduce=k_tree:1",)}
    (found,) = tuned(tight, meshes=("3x3",), compiled=pinned).phases
    assert not found.fits and found.best is not None and not found.best.fits
    assert "bytes" in found.best.why and (found.best.left or 0) < 0


# --- fronts


def drawn_outcomes(random, count):
    for number in range(count):
        units, needed, tokens = (int(n) for n in random.integers(1, 6, 3))
        own = Configuration("decode", mesh=f"{number + 1}x1")
        seconds = float(random.integers(1, 6))
        yield Outcome(own, True, units, tokens, seconds, needed, 0)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(20))
def test_a_front_is_what_nothing_else_beats(seed, measure):
    every = list(drawn_outcomes(np.random.default_rng(seed), 30))
    found = front(every, measure)

    def point(one):
        return (one.seconds, -one.tokens / one.seconds, taken(one, measure))

    points = {point(one) for one in every}
    undominated = {
        p for p in points if not any(q != p and all(map(np.less_equal, q, p)) for q in points)
    }
    assert [point(one) for one in found] == sorted(undominated, key=lambda p: (p[1], p[0], p[2]))


# --- files of results


class Counting:
    """Workers that say what they were given, and break off at a job."""

    def __init__(self, stop=None):
        self.done, self.stop = [], stop

    def results(self, work, jobs, watch, keep=unkept):
        found = []
        for job in jobs:
            if len(self.done) == self.stop:
                raise KeyboardInterrupt
            self.done.append(job.configuration)
            found.append(work(job))
            keep(found[-1])
        return found


SPACE = {
    "meshes": ("3x3", "4x4"),
    "compiled": {"algo": ("all_reduce=k_tree:2",)},
    "batches": (1, 3),
}


def test_an_interrupted_run_goes_on(tmp_path):
    whole = tuned(WAFER, **SPACE)
    file, first = tmp_path / "results.jsonl", Counting(stop=2)
    with pytest.raises(KeyboardInterrupt):
        tuned(WAFER, results=file, workers=first, **SPACE)
    with file.open("a") as stream:
        stream.write('{"configuration": {"phase": "dec')  # what a run leaves that is killed
    rest = Counting()
    again = tuned(WAFER, results=file, workers=rest, **SPACE)
    assert again.again == 2 and again.phases == whole.phases
    assert {*first.done}.isdisjoint(rest.done)
    assert {*first.done, *rest.done} == {one.configuration for one in whole.phases[0].tried}
    nothing = Counting()
    assert tuned(WAFER, results=file, workers=nothing, **SPACE).phases == whole.phases
    assert nothing.done == []


@pytest.mark.slow
def test_processes_find_the_same(tmp_path):
    file = tmp_path / "results.jsonl"
    found = tuned(WAFER, results=file, workers=Processes(2), **SPACE)
    assert found == tuned(WAFER, **SPACE)
    assert len(file.read_text().splitlines()) == 1 + len(found.phases[0].tried)


OTHERS = {
    "another length": {"compiled": {"algo": ("all_reduce=k_tree:2",), "seq": 32}},
    "another algorithm": {"compiled": {"algo": ("all_reduce=ring",)}},
    "another mesh": {"meshes": ("3x3",)},
    "other requests": {"batches": (1,)},
    "another device": {},
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    file = tmp_path_factory.mktemp("kept") / "results.jsonl"
    tuned(WAFER, results=file, **SPACE)
    return file.read_text()


@pytest.mark.parametrize("name", OTHERS)
def test_results_of_another_question_are_refused(kept, tmp_path, name):
    file = tmp_path / "results.jsonl"
    file.write_text(kept)
    where = WAFER.with_numbers(hop_cycles=2) if name == "another device" else WAFER
    with pytest.raises(MeshcError) as caught:
        tuned(where, results=file, **{**SPACE, **OTHERS[name]})
    assert caught.value.diagnostics[0].code == "results-differ"
    assert caught.value.diagnostics[0].notes and file.read_text() == kept


def broken(kept):
    """Files that are none of the results of a tuning."""
    head, first, *_ = kept.splitlines()
    outcome = json.loads(first)
    yield "a text", "hello\n", "results-invalid"
    yield "no end", "hello", "results-invalid"
    yield "a list", f"{head}\n[1]\n", "results-invalid"
    yield "no question", f"{first}\n", "results-invalid"
    yield "twice", f"{head}\n{first}\n{first}\n", "results-differ"
    changes = [
        ({"seconds": "1"}, "results-invalid"),
        ({"seconds": -1.0}, "results-invalid"),
        ({"units": 1.5}, "results-invalid"),
        ({"fits": 1}, "results-invalid"),
        ({"chosen": "ring"}, "results-invalid"),
        ({"chosen": [1]}, "results-invalid"),
        ({"mechanisms": [1]}, "results-invalid"),
        ({"secret": 1}, "results-invalid"),
        ({"configuration": 3}, "results-invalid"),
        ({"configuration": {**outcome["configuration"], "mesh": "5x5"}}, "results-differ"),
        ({"configuration": {**outcome["configuration"], "mesh": "wide"}}, "results-differ"),
        ({"configuration": {**outcome["configuration"], "phase": "prefill"}}, "results-differ"),
        ({"configuration": {**outcome["configuration"], "gpus": 2}}, "results-differ"),
        ({"configuration": {**outcome["configuration"], "batch": 2}}, "results-differ"),
        ({"configuration": {**outcome["configuration"], "algo": ["gemm=fast"]}}, "results-differ"),
    ]
    for change, code in changes:
        yield str(change), f"{head}\n{json.dumps({**outcome, **change})}\n", code


def test_files_that_are_no_results_are_refused(kept, tmp_path):
    file = tmp_path / "results.jsonl"
    for name, text, code in broken(kept):
        file.write_text(text)
        with pytest.raises(MeshcError) as caught:
            tuned(WAFER, results=file, **SPACE)
        assert caught.value.diagnostics[0].code == code, name
        assert file.read_text() == text


def test_what_breaks_the_compiler_ends_no_tuning(monkeypatch):
    def breaks(*_):
        raise InternalError("a pass claims what does not hold", "module", "opt")

    monkeypatch.setattr(configurations, "phase_on_mesh", breaks)
    (found,) = tuned(WAFER, meshes=("3x3",)).phases
    assert found.best is None
    assert all(one.why.startswith(configurations.FAULT) for one in found.tried)


def test_a_configuration_without_a_program_is_an_outcome():
    own = Configuration("decode", mesh="3x3", algo=("all_reduce=none",))
    found = outcome_of(Job(loaded(), asked(WAFER), own))
    assert not found.fits and found.seconds is None and found.why
