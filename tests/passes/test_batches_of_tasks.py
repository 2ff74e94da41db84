"""Tasks of a batch of tokens of any requests compute what its graph does, in every order, and facts
notice reads of what the step writes."""

import re

import numpy as np
import pytest
from test_drafts_of_tasks import TINY, tasks_of

import meshc
from meshc.devices import device
from meshc.interp.check import check_outcomes, check_same, random_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.interp.token_batches import in_words_of
from meshc.ir.batch import AHEAD, OWNER, POSITION
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_fact

TOKENS, REQUESTS, CAPACITY = 5, 3, 16
STEPS = [
    [(0, 3, 0), (1, 2, 0)],
    [(2, 2, 0), (0, 1, 3), (1, 2, 2)],
    [(1, 1, 4), (0, 3, 4), (2, 1, 2)],
]
"""Of each step the requests whose tokens it reads, how many, and how many are cached: parts of
prompts beside tokens of requests that go on."""


def graph_of(model, tokens=TOKENS):
    module = meshc.compile(
        TINY / model, compile_to="graph", phase="decode", seq=CAPACITY, batch=tokens, dtype="f32"
    ).modules["decode"]
    module.device = device("h200").with_numbers(cores=3)
    pipeline = meshc.parse_pipeline(f"batch-tokens{{tokens={tokens},requests={REQUESTS}}}")
    return meshc.PassManager(pipeline).run(module)


def scalars_of(step):
    """What runs of the graph and of its tasks are told of a step."""
    counts = [count for _, count, _ in step]
    owners = np.repeat([request for request, _, _ in step], counts)
    before = np.repeat([cached for _, _, cached in step], counts)
    first = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    own = before + np.arange(len(first)) - first
    each = {OWNER: owners, POSITION: before, AHEAD: np.arange(len(first)) - first}
    return (
        {OWNER: tuple(owners.tolist()), POSITION: tuple(own.tolist())},
        {name: tuple(one.tolist()) for name, one in each.items()},
    )


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
    trace = random_trace(graph, 3, len(STEPS))
    session, judge = Session(module, trace.constant, order=order), Session(graph, trace.constant)
    found, wanted = [], []
    for (given, _), step in zip(trace.steps, STEPS, strict=True):
        of_graph, of_tasks = scalars_of(step)
        wanted += judge.step(given, of_graph)
        found += session.step(given, of_tasks)
    check_outcomes(graph, module, wanted, found)


def test_checks_of_passes_compare_tasks_with_the_graph(text):
    """Also where tokens are absent, and behind the last position of a request."""
    graph = graph_of("tiny_cuda/llama-4h2")
    check_same(graph, meshc.parse(text), steps=10)
    with pytest.raises(MeshcError, match=r"interp-mismatch"):
        check_same(
            graph, meshc.parse(text.replace('position = "ahead + pos', 'position = "pos')), steps=4
        )


@pytest.mark.parametrize(
    ("owners", "positions", "told"),
    [
        ((2, 0, 0, 1, 1), (7, 3, 4, 0, 1), ((2, 0, 0, 1, 1), (7, 3, 3, 0, 0), (0, 0, 1, 0, 1))),
        ((1, 1, 0, 0, 0), (4, 5, -1, -1, -1), ((1,) * 5, (4,) * 5, (0, 1, 2, 3, 4))),
        ((0, 1, 1, 1, 2), (-1, 8, 9, -1, 3), ((0, 1, 1, 1, 2), (15, 8, 8, 8, 3), (0, 0, 1, 2, 0))),
        ((0,) * 5, (-1,) * 5, ((0,) * 5, (15,) * 5, (0, 1, 2, 3, 4))),
    ],
)  # fmt: skip
def test_tasks_are_told_of_the_same_tokens(text, owners, positions, told):
    found = in_words_of(meshc.parse(text), {OWNER: owners, POSITION: positions})
    assert found == dict(zip((OWNER, POSITION, AHEAD), told, strict=True))


@pytest.fixture(scope="module")
def text():
    module = tasks_of(graph_of("tiny_cuda/llama-4h2"), "expand-tasks{rows=16,tokens=4}")
    return re.sub(r" holds\(.*?\)", "", meshc.print_module(module))


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('below = "pos"', 'below = "pos + 1"', "streams_free"),
        ("owner, ahead + pos +: 1, g]", "owner, pos +: 1, g]", "one_giver"),
        ("[layer, owner, ahead + pos", "[layer, 0, ahead + pos", "one_giver"),
        ("ahead + pos <= 15", "ahead + pos <= 16", "within_bounds"),
    ],
)
def test_facts_hold_of_what_runs_are_told(text, old, new, fact):
    check_fact(meshc.parse(text), fact)
    assert old in text
    with pytest.raises(MeshcError):
        check_fact(meshc.parse(text.replace(old, new)), fact)


@pytest.mark.parametrize(
    "told",
    [
        {OWNER: (0, 1, 0, 1, 1), POSITION: (0,) * 5, AHEAD: (0, 0, 1, 1, 2)},
        {OWNER: (0, 0, 0, 1, 1), POSITION: (0, 0, 1, 0, 0), AHEAD: (0, 1, 2, 0, 1)},
        {OWNER: (0, 0, 0, 1, 1), POSITION: (0,) * 5, AHEAD: (0, 1, 3, 0, 1)},
    ],
)
def test_other_batches_are_refused(told):
    module = tasks_of(graph_of("tiny_cuda/llama-4h2"))
    trace = random_trace(graph_of("tiny_cuda/llama-4h2"), 3, 1)
    with pytest.raises(MeshcError, match=r"\[interp-scalar\]: tokens of a request stand"):
        Session(module, trace.constant).step(trace.steps[0][0], told)
