"""Mixtures of experts as tasks: right in every order, and weights of experts without rows are not
read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import each

import meshc
from meshc.cost.tasks.work import work_of
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny_experts", "tiny_gpt_oss", "tiny_latent_experts")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
MIXTRAL = DATA / "tiny_experts" / "mixtral-5x2"


def graph_of(model, batch=1):
    return meshc.compile(
        str(model), dtype="f32", compile_to="graph", phase="decode",
        seq=24, device="h200", batch=batch,
    ).modules["decode"]  # fmt: skip


def tasks_of(graph, blocks=5, meet="counter", **grain):
    options = ",".join(f"{n}={v}" for n, v in ({"rows": 4, "tokens": 4} | grain).items())
    passes = meshc.parse_pipeline(
        f"canonicalize,eliminate-transpose,expand-tasks{{{options}}},place-tasks{{blocks={blocks}}},"
        f"meet{{kind={meet}}},fold-scratch"
    )
    return meshc.PassManager(passes).run(graph)


def outcomes(module, trace, order=None):
    session = Session(module, trace.constant, order=order)
    return [array for given, scalars in trace.steps for array in session.step(given, scalars)]


@pytest.mark.parametrize(("model", "number"), each(zip(MODELS, range(99), strict=False), 6))
def test_in_every_order(model, number):
    batch, blocks = 1 + number % 3, (1, 5, 9)[number % 3]
    graph = graph_of(model, batch)
    module = tasks_of(
        graph_of(model, batch), blocks, ("counter", "tags")[number % 2], parts=1 + number % 2
    )
    check_claims(module)
    text = meshc.print_module(module)
    assert meshc.print_module(parse_module(Source("again", text))) == text
    trace = random_trace(graph, number, 2)
    wanted = run_trace(graph, trace)
    for order in (None, Order(1), Order(0, blocks=True), Order(1, blocks=True)):
        check_outcomes(graph, module, wanted, outcomes(module, trace, order))


def test_weights_of_experts_without_rows_are_not_read():
    """Weights of all that is not chosen are NaN, step by step."""
    graph, module = graph_of(MIXTRAL), tasks_of(graph_of(MIXTRAL))
    trace = random_trace(graph, 3, 1)
    wanted = run_trace(graph, trace)
    every = trace.constant
    read = 0
    for expert in range(5):
        spoiled = {
            name: np.where(np.arange(5).reshape(_along(name)) == expert, np.nan, value)
            if name in ("w_gate", "w_up", "w_down")
            else value
            for name, value in every.items()
        }
        try:
            check_outcomes(
                graph, module, wanted, outcomes(module, replace(trace, constant=spoiled))
            )
        except MeshcError as error:
            assert error.diagnostics[0].code == "interp-uninitialised"
            read += 1
    assert 2 <= read <= 4  # two experts of each of two layers


def _along(name: str) -> tuple[int, ...]:
    """The shape of a number for each expert beside a stacked weight."""
    return (1, 5, 1, 1) if name == "w_down" else (1, 1, 5, 1)


def test_bytes_are_those_of_experts_that_are_chosen():
    """Two of five for one request, four for two, in the place of all."""
    found = [_streamed(tasks_of(graph_of(MIXTRAL, batch))) for batch in (1, 2, 3)]
    width, inner = 20, 14
    one = 4 * 3 * width * inner  # bytes of an expert of a layer
    assert np.diff(found).tolist() == [2 * 2 * one, 2 * one]


def _streamed(module: Module) -> int:
    """Bytes that a step brings of weights of experts."""
    scalars = {"pos": [0] * module.dims["B"]}
    stages = work_of(module, scalars)
    return sum(
        phase.bytes * rounds for phase, rounds in _phases(stages) if phase.name in ("g", "x_15")
    )


def _phases(stages, rounds=1):
    for stage in stages:
        if hasattr(stage, "families"):
            yield stage, rounds
        elif hasattr(stage, "body"):
            yield from _phases(stage.body, rounds * stage.count)


def family(module, name):
    return next(o for o in module.walk() if isinstance(o, task.Family) and o.name == name)


def of_other_gates(module):
    """The sum takes what an expert gave where the next one is chosen."""
    (op,) = [
        o
        for o in family(module, "x_15_sum").regions[0].walk()
        if isinstance(o, task.Need) and o.result.name.startswith("gates")
    ]
    assert "expert +: 1" in str(op.view)
    own = f"{op.result} = task.need {op.view}"
    other = own.replace("expert +: 1", "(expert + 1) mod 5 +: 1")
    return meshc.print_module(module).replace(own, other)


def test_what_is_summed_by_other_gates_shows():
    graph = graph_of(MIXTRAL)
    module = tasks_of(graph_of(MIXTRAL))
    wrong = parse_module(Source("edited", of_other_gates(module)))
    trace = random_trace(graph, 3, 2)
    with pytest.raises(MeshcError) as caught:
        check_outcomes(graph, wrong, run_trace(graph, trace), outcomes(wrong, trace))
    assert {d.code for d in caught.value.diagnostics} <= {"interp-mismatch", "interp-uninitialised"}


def ungated(text):
    """The sum needs what experts give wherever it is."""
    begin = text.index("tile.for {var = expert, count = 5}")
    head, rest = text[:begin], text[begin:]
    begin = rest.index("task.routed")
    end = rest.index("\n", begin)
    return head + rest[:begin] + "tile.for {var = y, count = 1} {" + rest[end:]


def of_nothing(text):
    """Gates that are nothing but memory of the task."""
    made = "%own = task.local : f32[1]\n            task.routed %own {expert"
    return text.replace("task.routed %gates_4 {expert", made, 1)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (ungated, "only experts give that some row is sent to"),
        (of_nothing, "is nothing that the task needs"),
    ],
)
def test_what_is_refused(edit, words):
    text = edit(meshc.print_module(tasks_of(graph_of(MIXTRAL))))
    with pytest.raises(MeshcError, match=words):
        verify_module(parse_module(Source("edited", text)))


def test_ops_without_operands_are_refused_in_words():
    module, seen = tasks_of(graph_of(MIXTRAL)), set()
    for op in module.walk():
        if not isinstance(op, (task.Need, task.Stream, task.Give, task.Routed)):
            continue
        own, op.operands = op.operands, []
        with pytest.raises(MeshcError):
            verify_module(module)
        op.operands = own
        seen.add(type(op))
    assert len(seen) == 4
    verify_module(module)


EARLY = """model early(E=4, N=4, X=2, F=2) {
  weights f16  accumulate f32
  param wide[E, N], back[N, E], router[E, X], up[E, X, F], down[X, F, E]
  main(x[B, L, E]) {
    y = (x @ wide) @ back
    u = x @ up
    return y + (u * top_k(x @ router, 2, normalise = true)) @ down
  }
}
"""


def test_experts_in_front_of_their_gates_are_refused(tmp_path):
    """Products of one left side are one op, which may stand in front of the router's."""
    (tmp_path / "early.mesh").write_text(EARLY)
    given = {"compile_to": "graph", "device": "h200", "seq": 1}
    (graph,) = meshc.compile(str(tmp_path / "early.mesh"), **given).modules.values()
    with pytest.raises(MeshcError) as caught:
        tasks_of(graph)
    assert [d.code for d in caught.value.diagnostics] == ["no-tasks"]


def test_gates_and_what_stands_behind_them_have_no_tags():
    model = DATA / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"
    module = tasks_of(graph_of(model), meet="tags")
    tagged = {b.value.name for b in module.buffers if b.tags}
    assert tagged
    phases = [o for o in module.walk() if isinstance(o, task.Phase)]
    for phase in phases:
        needs = {o.view.buffer.name for o in phase.regions[0].walk() if isinstance(o, task.Need)}
        if any(isinstance(o, task.Routed) for o in phase.regions[0].walk()):
            assert not any(name.startswith("gates") and name in tagged for name in needs)
