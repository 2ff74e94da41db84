"""Tasks of a step that reads several tokens of each request compute what its graph does, in every
order, and facts notice reads of what the step writes."""

import re
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.devices import device
from meshc.interp.check import check_outcomes, random_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.batch import POSITION, tokens_of_request
from meshc.ir.clone import clone_module
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_fact

TINY = Path(__file__).parents[1] / "data"
DRAFTS, REQUESTS, CAPACITY = 2, 2, 16
PASSES = "expand-tasks{rows=2,tokens=4},place-tasks{blocks=3},meet,fold-scratch"
STEPS = [(3, 8), (5, 9), (5, 12)]
"""Positions of two requests: those of a step lie among the drafts of the one before, or behind."""


def graph_of(model, read=1 + DRAFTS):
    module = meshc.compile(
        TINY / model, compile_to="graph", phase="decode", seq=CAPACITY, batch=REQUESTS, dtype="f32"
    ).modules["decode"]
    module.device = device("h200").with_numbers(cores=3)
    module.dims["L"], module.scalars[POSITION] = read, (0, CAPACITY - read)
    return module


def tasks_of(graph, passes=PASSES):
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(clone_module(graph))


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("tiny_cuda/llama-4h2", Order(1, blocks=True)),
        pytest.param("tiny_families/gemma2-6h2-window", Order(2), marks=pytest.mark.slow),
        pytest.param("tiny_cuda/deepseek-4h", Order(3, blocks=True), marks=pytest.mark.slow),
        pytest.param("tiny_experts/mixtral-5x2", Order(4), marks=pytest.mark.slow),
    ],
)
def test_tasks_compute_what_the_graph_does(model, order):
    graph = graph_of(model)
    module = tasks_of(graph)
    assert tokens_of_request(module) == 1 + DRAFTS
    trace = random_trace(graph, 3, len(STEPS))
    session, judge = Session(module, trace.constant, order=order), Session(graph, trace.constant)
    found, wanted = [], []
    for (given, _), at in zip(trace.steps, STEPS, strict=True):
        wanted += judge.step(given, {POSITION: at})
        each = tuple(np.repeat(at, 1 + DRAFTS).tolist())
        found += session.step(given, {POSITION: each})
    check_outcomes(graph, module, wanted, found)


@pytest.fixture(scope="module")
def text():
    module = tasks_of(graph_of("tiny_cuda/llama-4h2"), "expand-tasks{rows=16,tokens=4}")
    return re.sub(r" holds\(.*?\)", "", meshc.print_module(module))


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('below = "pos"', 'below = "pos + 1"', "streams_free"),
        ("floor(b/3), pos + b mod 3 +: 1, g]", "floor(b/3), pos +: 1, g]", "one_giver"),
        ("floor(b/3), pos + b mod 3 +: 1, g]", "floor(b/3), pos + 1 +: 1, g]", "one_giver"),
        ("pos = 0..13", "pos = 0..14", "within_bounds"),
    ],
)
def test_facts_hold_of_all_tokens_of_a_request(text, old, new, fact):
    check_fact(meshc.parse(text), fact)
    assert old in text
    with pytest.raises(MeshcError):
        check_fact(meshc.parse(text.replace(old, new)), fact)


def test_a_step_whose_lanes_are_dealt_verifies_no_drafts():
    with pytest.raises(MeshcError, match="drafts whose heads are dealt lane by lane"):
        tasks_of(graph_of("tiny_cuda/llama-4h2"), "expand-tasks{heads=true,lanes=2}")
