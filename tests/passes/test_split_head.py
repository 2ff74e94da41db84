"""Tasks that share the lanes of a head compute what the graph does, in clusters and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from reduced import each

import meshc
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.ops import task
from meshc.ir.parser import parse_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny", "tiny_cuda", "tiny_dense", "tiny_families")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
GROUPED = DATA / "tiny" / "llama-9h3-tied"
LATENTS = DATA / "tiny_cuda" / "deepseek-4h"


def graph_of(model, batch=1):
    return meshc.compile(
        str(model), dtype="f32", compile_to="graph", phase="decode",
        seq=24, device="h200", batch=batch,
    ).modules["decode"]  # fmt: skip


def tasks_of(graph, lanes, clusters=0, **grain):
    options = {"rows": 4, "tokens": 4, "heads": "true", "lanes": lanes, **grain}
    text = ",".join(f"{name}={value}" for name, value in options.items())
    placed = f"place-tasks{{blocks={max(clusters * lanes, 5)}}}"
    placed += f",fuse-cluster{{cluster={lanes}}}" if clusters else ""
    passes = meshc.parse_pipeline(
        f"canonicalize,eliminate-transpose,expand-tasks{{{text}}},{placed},meet,fold-scratch"
    )
    return meshc.PassManager(passes).run(graph)


def outcomes(module, trace, order):
    session = Session(module, trace.constant, order=order)
    return [array for given, scalars in trace.steps for array in session.step(given, scalars)]


@pytest.mark.parametrize(("model", "number"), each(zip(MODELS, range(99), strict=False), 8))
def test_any_number_of_parts(model, number):
    """In every order of tasks, and of blocks as far as meetings let them run ahead."""
    lanes, clusters, batch = (2, 4, 8)[number % 3], (0, 1, 3)[number // 2 % 3], 1 + number % 2
    graph = graph_of(model, batch)
    try:
        module = tasks_of(graph_of(model, batch), lanes, clusters)
    except MeshcError as refusal:
        (error,) = refusal.diagnostics
        why = ("latents", "parts of", "the mean of some lanes")
        assert error.code == "no-tasks" and any(words in str(error) for words in why)
        return
    check_claims(module)
    text = meshc.print_module(module)
    assert meshc.print_module(parse_module(Source("again", text))) == text
    trace = random_trace(graph, number, 2)
    wanted = run_trace(graph, trace)
    orders = [Order(1), Order(0, blocks=True), Order(1, blocks=True)]
    for order in (None, *orders):
        check_outcomes(graph, module, wanted, outcomes(module, trace, order))


def test_scores_and_lanes_meet_in_clusters():
    module = tasks_of(graph_of(GROUPED), 4, 4)
    phases = [op for op in module.walk() if isinstance(op, task.Phase)]
    assert [p.name for p in phases if p.groups] == ["q_k_v", "score", "attend", "o"]
    kinds = [op.kind for op in module.walk() if isinstance(op, task.Meet)]
    assert kinds.count("cluster") == 3
    assert {"products", "attended"} <= {b.value.name for b in module.buffers if b.cluster}


def test_every_meeting_that_is_left_out_shows():
    graph = graph_of(GROUPED)
    module = tasks_of(graph_of(GROUPED), 4, 4)
    trace = random_trace(graph, 5, 2)
    wanted = run_trace(graph, trace)
    meetings = [op for op in module.walk() if isinstance(op, task.Meet)]

    def shows(number):
        for seed in range(8):
            order = Order(seed, blocks=True, passed=frozenset({number}))
            try:
                check_outcomes(graph, module, wanted, outcomes(module, trace, order))
            except MeshcError:
                return True
        return False

    assert all(shows(number) for number in range(len(meetings)))


def when_new(module, name):
    """The products with the new token, which one of the runs has."""
    families = (op for op in module.walk() if isinstance(op, task.Family) and op.name == name)
    ops = next(families).regions[0].walk()
    return [op for op in ops if getattr(op, "kernel", "") == "gemm" and op.when is not None]


@pytest.mark.parametrize("name", ["score", "attend"])
def test_a_step_without_its_own_token_shows(name):
    graph = graph_of(GROUPED)
    module = tasks_of(graph_of(GROUPED), 2, 2)
    (op,) = when_new(module, name)
    for block in (b for o in module.walk() for b in o.regions):
        block.ops[:] = [one for one in block.ops if one is not op]
    trace = random_trace(graph, 5, 2)
    with pytest.raises(MeshcError) as caught:
        check_outcomes(graph, module, run_trace(graph, trace), outcomes(module, trace, None))
    assert [d.code for d in caught.value.diagnostics] == ["interp-mismatch"]


@pytest.mark.parametrize(
    ("model", "grain", "words"),
    [
        (LATENTS, {}, "there are no tasks for latents"),
        (GROUPED, {"lanes": 3}, "no tasks for 3 parts of the 4 lanes of a head"),
        (GROUPED, {"splits": 2}, "leave no records to merge"),
        (GROUPED, {"heads": "false", "merge": "true"}, "leave no records to merge"),
        (GROUPED, {"lanes": 0}, "lanes is 0, but it is at least 1"),
    ],
)
def test_what_cannot_be_shared(model, grain, words):
    with pytest.raises(MeshcError, match=words):
        tasks_of(graph_of(model), grain.pop("lanes", 2), **grain)
