"""The choice of a token as tasks: the one that NumPy takes, in every order that needs allow."""

from __future__ import annotations

import numpy as np
import pytest
from reduced import each
from test_expand_tasks import DATA, edges_of, graph_of, implied, run_in

import meshc
from meshc.devices import device
from meshc.interp.check import Trace, check_outcomes, random_trace, run_trace
from meshc.interp.task_orders import Order
from meshc.ir.clone import clone_module
from meshc.serving.sampling import Sampler, Sampling
from meshc.support.diagnostics import MeshcError

PLACED = "place-tasks{blocks=7},meet,fold-scratch"


def choice(words, batch=1):
    """The graph of a choice of one of so many words."""
    graph = meshc.parse(
        f"module @choice level(graph) {{\n  dims B = {batch}, L = 1, V = {words}\n"
        "  func @decode(in %logits: f32[B, L, V]) -> (f32[B, L]) {\n"
        "    %token = graph.arg_max %logits {dim = V} : f32[B, L]\n"
        "    graph.return %token\n  }\n}\n"
    )
    graph.device = device("h200")
    return graph


def draws(words, batch=1):
    """The graph of a draw of one of so many words."""
    graph = meshc.parse(
        f"module @draws level(graph) {{\n  dims B = {batch}, L = 1, V = {words}, C = 4\n"
        "  func @decode(in %logits: f32[B, L, V], in %settings: f32[B, L, C], "
        "in %stream: i32[B, L, C]) -> (f32[B, L]) {\n"
        "    %token = graph.draw %logits, %settings, %stream {dim = V} : f32[B, L]\n"
        "    graph.return %token\n  }\n}\n"
    )
    graph.device = device("h200")
    return graph


def tasks_of(graph, more=""):
    text = f"canonicalize,eliminate-transpose,expand-tasks{more}"
    return meshc.PassManager(meshc.parse_pipeline(text)).run(clone_module(graph))


def drawn(seed, batch, words):
    """Logits of requests, among which the largest stands at several places, and more than once."""
    rng = np.random.default_rng(seed)
    logits = np.float32(rng.standard_normal((batch, 1, words)))
    for row in logits[:, 0]:
        row[rng.integers(0, words, 3)] = row.max() + rng.integers(0, 2)
    return logits


def chosen(module, logits, order=None):
    (token,) = run_in(module, Trace({}, (({"logits": logits}, {}),)), order)
    return token[:, 0]


SETTINGS = [
    Sampling(0.0), Sampling(1.0), Sampling(0.3), Sampling(5.0), Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=5), Sampling(2.0, top_p=0.0), Sampling(2.0, top_p=0.5),
    Sampling(2.0, 7, 0.9), Sampling(3.0, min_p=0.2), Sampling(3.0, 9, 0.95, 0.1), Sampling(1e-30),
    Sampling(1e30, top_p=0.3),
]  # fmt: skip


@pytest.mark.parametrize("number", each(range(len(SETTINGS)), 4))
def test_a_draw_is_that_of_the_host_in_any_order(number):
    """Requests with settings of their own, seeds of all 64 bits, numbers in any place."""
    graph, rng = draws(132, batch=3), np.random.default_rng(number)
    module, placed = tasks_of(graph), tasks_of(graph, f",{PLACED}")
    for place in (0, 1, 6):
        logits = drawn(number + place, 3, 132)
        samplings = [SETTINGS[(number + b) % len(SETTINGS)] for b in range(3)]
        seeds = [int(rng.integers(0, 1 << 64, dtype=np.uint64)) for _ in range(3)]
        wanted, stream = [], np.zeros((3, 1, 4), np.uint32)
        for b, (sampling, seed) in enumerate(zip(samplings, seeds, strict=True)):
            sampler = Sampler(sampling, seed, b + 7)
            wanted.append([sampler(logits[b, 0]) for _ in range(place + 1)][-1])
            stream[b, 0] = seed % (1 << 32), seed >> 32, b + 7, place
        settings = np.array([[one.numbers()] for one in samplings])
        inputs = {"logits": logits, "settings": settings, "stream": stream.view(np.int32)}
        trace = Trace({}, ((inputs, {}),))
        assert run_trace(graph, trace)[0][:, 0].tolist() == wanted
        for made, order in ((module, Order(number)), (placed, Order(number, blocks=True))):
            assert run_in(made, trace, order)[0][:, 0].tolist() == wanted


@pytest.mark.parametrize("words", [1, 2, 97, 132, 512, 1000, 1048])
def test_the_choice_is_that_of_numpy_in_any_order(words):
    """Vocabularies that parts divide, and primes."""
    graph = choice(words, batch=3)
    module, placed = tasks_of(graph), tasks_of(graph, f",{PLACED}")
    for seed in range(3):
        logits = drawn(seed, 3, words)
        wanted = logits[:, 0].argmax(-1)
        orders = [None, Order(seed), Order(seed, "logits_first"), Order(seed, "logits_largest")]
        for order in orders:
            assert (chosen(module, logits, order) == wanted).all()
        for blocks in (Order(seed, blocks=True), Order(seed + 9, blocks=True)):
            assert (chosen(placed, logits, blocks) == wanted).all()


def test_the_index_is_infinite_where_a_logit_is_no_number():
    logits = drawn(1, 2, 264)
    logits[1, 0, 100] = np.nan
    token = chosen(tasks_of(choice(264, batch=2)), logits)
    assert token.tolist() == [logits[0, 0].argmax(), np.inf]


@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
def test_nothing_is_drawn_where_no_largest_score_is_finite(worst):
    graph, logits = draws(132), drawn(1, 1, 132)
    logits[0, 0, 77 if worst != -np.inf else slice(None)] = worst
    settings = np.array([[Sampling(1.0, 5, 0.5).numbers()]])
    inputs = {"logits": logits, "settings": settings, "stream": np.zeros((1, 1, 4), np.int32)}
    trace = Trace({}, ((inputs, {}),))
    for found in (run_trace(graph, trace)[0], run_in(tasks_of(graph), trace, Order(1))[0]):
        assert found.tolist() == [[np.inf]]


def test_a_step_may_choose_its_token_itself():
    """Of a whole model, by tags as well: what is compared and counted has none."""
    graph = graph_of(DATA / "tiny_cuda" / "llama-4h2", batch=2, dtype="f16")
    graph = meshc.PassManager(meshc.parse_pipeline("choose-token")).run(graph)
    trace = random_trace(graph, 1, 3, first=2)
    wanted = run_trace(graph, trace)
    for more in ("", f",{PLACED}", ",place-tasks{blocks=7},meet{kind=tags},fold-scratch"):
        module = tasks_of(graph, more)
        tagged = {str(b.value) for b in module.buffers if b.tags is not None}
        assert bool(tagged) == ("tags" in more)
        assert not tagged & {"%result_1", "%largest_of_parts", "%first_of_parts"}
        for order in (None, Order(3)) if not more else (Order(3, blocks=True),):
            check_outcomes(graph, module, wanted, run_in(module, trace, order))


def test_every_edge_of_a_choice_that_is_left_out_shows(monkeypatch):
    module = tasks_of(choice(300, batch=2))
    """As another token, or as what is computed from unset memory."""
    logits = drawn(5, 2, 300)
    trace, wanted = Trace({}, (({"logits": logits}, {}),)), logits[:, 0].argmax(-1)
    names, givers = edges_of(module, trace, monkeypatch)
    pairs = {(names[n], names[g]) for n, needs in enumerate(givers) for g in needs}
    needed = [pair for pair in sorted(pairs) if not implied(names, givers, pair)]
    assert len(needed) >= 2
    for number, pair in enumerate(needed):
        order = Order(number, pair[0], frozenset({pair}))
        try:
            assert (chosen(module, logits, order) != wanted).any(), pair
        except MeshcError as error:
            assert "unset memory" in str(error)
