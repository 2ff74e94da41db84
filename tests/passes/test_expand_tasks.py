"""Programs of tasks compute what their graph does, in every order that needs allow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from random_graphs import random_attention, random_graph
from reduced import each

import meshc
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Edges, Order
from meshc.ir.ops import task
from meshc.support.diagnostics import MeshcError

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny", "tiny_cuda", "tiny_dense", "tiny_families", "tiny_scaled")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
NAMES = [f"{path.parent.name}/{path.name}" for path in MODELS]


def graph_of(model, batch=1, seq=24, dtype="f32"):
    given = {"phase": "decode", "seq": seq, "device": "h200", "batch": batch}
    return meshc.compile(str(model), dtype=dtype, compile_to="graph", **given).modules["decode"]


def tasks_of(graph, **options):
    text = ",".join(f"{name}={value}" for name, value in options.items())
    passes = meshc.parse_pipeline(f"canonicalize,eliminate-transpose,expand-tasks{{{text}}}")
    return meshc.PassManager(passes).run(graph)


def families(module):
    return [op.name for op in module.walk() if isinstance(op, task.Family)]


def run_in(module, trace, order):
    """The results of each step, and what the last leaves."""
    session = Session(module, trace.constant, order=order)
    return [array for given, scalars in trace.steps for array in session.step(given, scalars)]


def check_orders(graph, module, seed, steps=3):
    """The text order, a random one, and one in which a drawn family runs as early as it may."""
    trace = random_trace(graph, seed, steps, first=random.Random(seed).randrange(4))
    wanted = run_trace(graph, trace)
    drawn = random.Random(seed)
    for order in (None, Order(seed), Order(seed, drawn.choice(families(module)))):
        check_outcomes(graph, module, wanted, run_in(module, trace, order))


@pytest.mark.parametrize(("name", "number"), each(zip(NAMES, range(99), strict=False), 4))
def test_models(name, number):
    """Each model with another grain and batch; in half precision bounds are wide."""
    batch, rows, tokens = 1 + number % 3, (16, 4, 8)[number % 3], (32, 4, 5, 1)[number % 4]
    dtype = "f16" if number % 5 == 4 else "f32"
    graph, before = (graph_of(DATA / name, batch, dtype=dtype) for _ in range(2))
    more = {"parts": (1, 2, 4)[number % 3], "merge": ("false", "true")[number % 2]}
    check_orders(before, tasks_of(graph, rows=rows, tokens=tokens, **more), number)


@pytest.mark.parametrize("seed", each(range(60), 6))
def test_random_graphs(seed):
    graph, _ = random_graph(seed)
    try:
        module = tasks_of(random_graph(seed)[0], rows=random.Random(seed).choice([1, 2, 8, 16]))
    except MeshcError as error:
        assert {d.code for d in error.diagnostics} == {"no-tasks"}
        return
    check_orders(graph, module, seed)


@pytest.mark.parametrize("seed", each(range(40), 5))
def test_random_attention(seed):
    graph, _ = random_attention(seed)
    drawn = random.Random(seed)
    rows, tokens = drawn.choice([1, 2, 8, 16]), drawn.choice([1, 2, 3, 8])
    more = {"parts": drawn.choice([1, 2, 3]), "merge": drawn.choice(["true", "false"])}
    more["columns"] = drawn.choice(["true", "false"])
    module = tasks_of(random_attention(seed)[0], rows=rows, tokens=tokens, **more)
    check_orders(graph, module, seed)


def prompt_of(name, most, dtype="f32"):
    """The graph of a chunk of a prompt of at most so many tokens."""
    given = {"phase": "prefill", "seq": 24, "device": "h200"}
    graph = meshc.compile(str(DATA / name), dtype=dtype, compile_to="graph", **given)
    passes = meshc.parse_pipeline(f"chunk-prompts{{most={most}}}")
    return meshc.PassManager(passes).run(graph.modules["prefill"])


@pytest.mark.parametrize(("name", "number"), each(zip(NAMES, range(99), strict=False), 5))
def test_prompts(name, number):
    """Two chunks one behind the other, in orders of tasks and block by block."""
    most, rows, tokens = (5, 16, 8)[number % 3], (16, 4, 8)[number % 3], (32, 4, 5, 1)[number % 4]
    more = {"parts": (1, 2, 4)[number % 3], "merge": ("false", "true")[number % 2]}
    more["columns"] = ("false", "true")[number // 2 % 2]
    graph = prompt_of(name, most)
    module = tasks_of(prompt_of(name, most), rows=rows, tokens=tokens, **more)
    check_orders(graph, module, number)
    module = placed(module, (5, 3, 16, 2)[number % 4])
    trace = random_trace(graph, number)
    wanted = run_trace(graph, trace)
    check_outcomes(graph, module, wanted, run_in(module, trace, Order(number, blocks=True)))


def test_windows_of_prompts_over_runs_of_one_token():
    """Of several queries some attend to a cached token, and others are a window behind it."""
    graph, before = (prompt_of("tiny_dense/mistral-6h2", 16) for _ in range(2))
    module, trace = tasks_of(graph, rows=8, tokens=1), random_trace(before, 1)
    assert len(trace.steps) == 2
    check_outcomes(before, module, run_trace(before, trace), run_in(module, trace, None))


def test_every_edge_of_a_prompt_that_is_left_out_shows(monkeypatch):
    """In some order: one may have what was forgotten there by chance."""
    graph = prompt_of("tiny/llama-3h1", 8)
    module = tasks_of(prompt_of("tiny/llama-3h1", 8), rows=8, tokens=4)
    trace = random_trace(graph, 5, 2)
    names, givers = edges_of(module, trace, monkeypatch)
    pairs = {(names[n], names[g]) for n, needs in enumerate(givers) for g in needs}
    needed = [pair for pair in sorted(pairs) if not implied(names, givers, pair)]
    assert len(needed) >= 12
    for pair in needed:
        assert any(noticed(module, trace, pair, seed) for seed in range(3)), pair


def noticed(module, trace, pair, seed):
    try:
        run_in(module, trace, Order(seed, pair[0], frozenset({pair})))
    except MeshcError as error:
        assert "unset memory" in str(error)
        return True
    return False


def edges_of(module, trace, monkeypatch):
    """The family of each task, and the tasks whose gifts it needs."""
    found = []
    kept = Edges.leave_out

    def watch(self, names, pairs):
        found.append((names, [set(givers) for givers in self.givers]))
        kept(self, names, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(Edges, "leave_out", watch)
        run_in(module, trace, Order(0))
    return found[0]


def implied(names, givers, pair):
    """Whether all that the edges of ``pair`` put in order is in order without them."""
    left = [{g for g in needs if (names[n], names[g]) != pair} for n, needs in enumerate(givers)]
    for number, needs in enumerate(givers):
        behind, work = set(), [number]
        while work:
            fresh = left[work.pop()] - behind
            behind |= fresh
            work += fresh
        if not needs <= behind:
            return False
    return True


def test_every_edge_that_is_left_out_shows(monkeypatch):
    """Between all families that need each other, but where other needs bring the same order."""
    name = DATA / "tiny" / "llama-3h1"
    graph, module = graph_of(name), tasks_of(graph_of(name), rows=8, tokens=4)
    trace = random_trace(graph, 5, 2)
    names, givers = edges_of(module, trace, monkeypatch)
    pairs = {(names[n], names[g]) for n, needs in enumerate(givers) for g in needs}
    needed = [pair for pair in sorted(pairs) if not implied(names, givers, pair)]
    assert len(needed) >= 12 and len(pairs) - len(needed) <= 4
    for pair in needed:
        with pytest.raises(MeshcError, match="unset memory"):
            run_in(module, trace, Order(3, pair[0], frozenset({pair})))


PLACED = "place-tasks{{blocks={}}},meet,fold-scratch"


def placed(module, blocks):
    return meshc.PassManager(meshc.parse_pipeline(PLACED.format(blocks))).run(module)


@pytest.mark.parametrize(("name", "number"), each(zip(NAMES, range(99), strict=False), 6))
def test_blocks_that_meet(name, number):
    """Blocks that run ahead as far as meetings let them, over memory that layers share."""
    blocks, batch = (5, 3, 16, 2)[number % 4], 1 + number % 2
    graph = graph_of(DATA / name, batch)
    module = placed(tasks_of(graph_of(DATA / name, batch), rows=8, tokens=4), blocks)
    assert any(buffer.kept for buffer in module.buffers)
    trace = random_trace(graph, number, 3)
    wanted = run_trace(graph, trace)
    for seed in range(3):
        check_outcomes(graph, module, wanted, run_in(module, trace, Order(seed, blocks=True)))


def test_every_meeting_that_is_left_out_shows():
    name = DATA / "tiny" / "llama-3h1"
    graph = graph_of(name)
    module = placed(tasks_of(graph_of(name), rows=8, tokens=4), 5)
    trace = random_trace(graph, 5, 2)
    wanted = run_trace(graph, trace)
    count = sum(isinstance(op, task.Meet) for op in module.walk())
    assert count == 6
    for number in range(count):
        order = Order(number, blocks=True, passed=frozenset({number}))
        with pytest.raises(MeshcError, match=r"unset memory|is off by"):
            check_outcomes(graph, module, wanted, run_in(module, trace, order))


def test_tasks_without_a_place():
    module = tasks_of(graph_of(DATA / "tiny" / "llama-3h1"))
    trace = random_trace(module, 1, 1)
    with pytest.raises(MeshcError, match="are not placed as others are"):
        run_in(module, trace, Order(0, blocks=True))


def test_products_in_parts_and_merged_attention():
    """The output projection can be divided too where attention lies merged in a buffer."""
    name = DATA / "tiny" / "llama-3h1"
    graph, before = graph_of(name, 2), graph_of(name, 2)
    module = placed(tasks_of(graph, rows=8, tokens=4, parts=4, merge="true"), 5)
    phases = [op.name for op in module.walk() if isinstance(op, task.Phase)]
    assert [p for p in phases if p.endswith(("_sum", "_merged"))] == [
        "o_3_merged",
        "o_sum",
        "y_sum",
    ]
    trace = random_trace(before, 2, 3)
    wanted = run_trace(before, trace)
    for seed in range(3):
        found = run_in(module, trace, Order(seed, blocks=True))
        check_outcomes(before, module, wanted, found)


def test_a_width_that_parts_do_not_divide_stays_whole():
    report = meshc.Diagnostics()
    passes = meshc.parse_pipeline("expand-tasks{parts=7}")
    module = meshc.PassManager(passes).run(graph_of(DATA / "tiny" / "llama-3h1"), report)
    assert "_parts" not in meshc.print_module(module)
    (words,) = [m.message for m in report.messages if m.code == "expand-tasks"]
    assert words == "%y, of width 40, is not divided into 7 parts"


def test_only_wide_products_are_divided():
    """The left side of the outer product has the most floats of each request."""
    graph = graph_of(DATA / "tiny/llama-3h1", 2)
    width = graph.dims["F"]
    asked = {"rows": 8, "tokens": 4, "parts": 4}
    for wide, divided in ((0, True), (2 * width * 4, True), (2 * width * 4 + 1, False)):
        text = meshc.print_module(
            tasks_of(graph_of(DATA / "tiny/llama-3h1", 2), wide=wide, **asked)
        )
        assert ("_parts" in text) == divided


def test_a_run_has_as_many_tokens_as_a_tile():
    """16 KiB of keys and values, whole sixteens, at most 64 and at least 16."""
    for model, tokens in (("llama-3-8b", 32), ("smollm2-135m", 64)):
        graph = graph_of(model, seq=256, dtype="f16")
        (first, *_) = [
            op.view.shape() for op in tasks_of(graph).walk()
            if isinstance(op, task.Stream) and op.below is not None
        ]  # fmt: skip
        assert first[0].constant == tokens, model


@pytest.mark.parametrize(
    ("option", "least"), [("rows=0", 1), ("tokens=-1", 0), ("parts=0", 1), ("wide=-1", 0)]
)
def test_grains_are_positive(option, least):
    name, value = option.split("=")
    with pytest.raises(MeshcError, match=f"{name} is {value}, but it is at least {least}"):
        tasks_of(graph_of(DATA / "tiny" / "llama-3h1"), **{name: value})


def test_size_does_not_grow_with_layers():
    graph = meshc.compile(
        "llama-3-8b",
        phase="decode",
        seq=4097,
        dtype="f16",
        device="h200",
        compile_to="graph",
    ).modules["decode"]
    text = meshc.print_module(tasks_of(graph))
    assert len(text.splitlines()) < 260
    assert "sizes = [1, 8, 16]" in text  # 8 key heads, 128 of 132 blocks attend
