"""Prompts in chunks and by groups of layers on the Python target, beside requests that decode: each
request gets the tokens that it gets alone, from prompts that are read whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mesh_programs import load_program, write
from reduced import only

from meshc.driver import Check, CompileRequest, compile_loaded, load_any, open_weights
from meshc.driver.compiling import graph_module
from meshc.interp.check import Trace, run_from
from meshc.interp.inputs import RandomArrays
from meshc.interp.named import Array
from meshc.ir.module import Level, Module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_from, serving_passes
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny"
PROMPTS = ([5, 17, 32, 3, 8, 30, 2, 2, 31, 7, 7, 1, 12, 30], [9], [11, 4, 3])
TOKENS = 6
CAPACITY = 20
CASES = [
    ("llama-9h3-tied", "3x5", "cyclic"),
    ("qwen2-7h1", "4x2", "shift"),
    ("llama-3h1", "1x1", "cyclic"),
    ("llama-3h1", "3x4", "shift"),
    ("llama-3h1", "2x2", "concat"),
    ("llama-biased-f16", "2x3", "cyclic"),
    ("qwen2-6h2-tied-bf16", "6x4", "auto"),
    ("../tiny_latent_experts/deepseek-v3-8x3", "3x2", "auto"),
    ("../tiny_gpt_oss/gpt-oss-5x2-yarn", "2x3", "auto"),
    ("../tiny_dense/mistral-6h2", "3x2", "auto"),
    ("../tiny_scaled/granite-6h2-biased", "2x3", "auto"),
    ("../tiny_families/gemma-6h2", "3x2", "cyclic"),
    ("../tiny_families/gemma2-3h3-capped-bf16", "2x2", "shift"),
    ("../tiny_families/gemma3-6h2-window", "3x2", "auto"),
    ("../tiny_families/gpt2-5h-tied", "2x3", "auto"),
]


def program(name: str, folder: Path, **options: object):  # type: ignore[no-untyped-def]
    """A loaded program for as many requests as there are prompts."""
    loaded = load_any(str(TINY / name), Diagnostics())
    asked = {"seq": CAPACITY, "dtype": "f32", "batch": len(PROMPTS), **options}
    compiled = compile_loaded(loaded, CompileRequest(**asked))  # type: ignore[arg-type]
    assert loaded.weights is not None
    write(folder, compiled.files)
    return load_program(folder).load(
        open_weights(loaded.weights, loaded.config, None, Diagnostics())
    )


class Serving:
    """Requests on a program for serving, and the tokens that they have got."""

    def __init__(self, model) -> None:  # type: ignore[no-untyped-def]
        self.model = model
        self.found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.layers = sum(count for _, _, count in model.loops)

    def step(self, *requests: int) -> None:
        """A token for each of ``requests`` that has not all of its own."""
        tokens = {}
        for number in requests:
            prompt, found = PROMPTS[number], self.found[number]
            if len(found) < TOKENS:
                tokens[number] = (found or prompt)[-1], len(prompt) - 1 + len(found)
        for number, logits in self.model.step(tokens).items():
            self.found[number].append(int(logits.argmax()))

    def read(self, request: int, chunk: int, groups: list[range], *beside: int) -> None:
        """The prompt of ``request`` in chunks that pass ``groups``, others decoding after each."""
        before = PROMPTS[request][:-1]
        for start in range(0, len(before), chunk):
            rows = self.model.embedded(before[start : start + chunk], start)
            for group in groups:
                rows = self.model.read(request, rows, start, group)
                self.step(*beside)


@pytest.mark.parametrize(
    ("name", "mesh", "kv"), only(CASES, CASES[1], CASES[5], CASES[10], CASES[13])
)
def test_requests_beside_each_other_get_what_they_get_alone(
    name: str, mesh: str, kv: str, tmp_path: Path
) -> None:
    whole = program(name, tmp_path / "whole", mesh=mesh, kv=kv)
    wanted = whole.generate_all(PROMPTS, TOKENS)
    model = program(name, tmp_path / "served", mesh=mesh, kv=kv, serving="layers!")
    assert model.generate_all(PROMPTS, TOKENS) == wanted
    serving, rows = Serving(model), int(mesh.split("x")[1])
    each = [range(layer, layer + 1) for layer in range(serving.layers)]
    # Caches are those of requests before: nothing is reset from here on.
    serving.read(2, len(PROMPTS[2]), each, 1)
    serving.read(0, -(-5 // rows) * rows, each, 1, 2)
    for _ in range(TOKENS):
        serving.step(0, 1, 2)
    assert [serving.found[number] for number in range(len(PROMPTS))] == wanted


def test_chunks_alone_need_no_groups(tmp_path: Path) -> None:
    wanted = program("llama-3h1", tmp_path / "whole", mesh="2x2").generate_all(PROMPTS, TOKENS)
    model = program("llama-3h1", tmp_path / "served", mesh="2x2", serving="chunks")
    serving = Serving(model)
    rows = [model.embedded(PROMPTS[0][start : min(start + 4, 13)]) for start in range(0, 13, 4)]
    for number, part in enumerate(rows):
        model.read(0, part, 4 * number)
    for _ in range(TOKENS):
        serving.step(0)
    assert serving.found[0] == wanted[0]


def test_what_a_program_cannot_do_is_refused(tmp_path: Path) -> None:
    whole = program("llama-3h1", tmp_path / "whole", mesh="2x2")
    served = program("llama-3h1", tmp_path / "served", mesh="2x2", serving="layers!")
    rows = served.embedded([5, 6])
    for model, words, arguments in (
        (whole, "reads prompts whole", (0, rows, 2)),
        (whole, "passes all layers at once", (0, rows, 0, range(1))),
        (served, "is no multiple of 2", (0, rows, 3)),
        (served, "do not fit a cache", (0, rows, CAPACITY)),
        (served, "no layers", (0, rows, 0, range(1, 9))),
    ):
        with pytest.raises(Exception, match=words):
            model.read(*arguments)
    with pytest.raises(Exception, match="continues all of its requests"):
        whole.step({0: (5, 0)})


def modules(name: str, mesh: str, level: Level, rows: int) -> dict[str, Module]:
    """Prefill and decode for two requests, brought to ``level``."""
    loaded = load_any(str(TINY / name), Diagnostics())
    request = CompileRequest(mesh=mesh, seq=4 * rows + 2, dtype="f32", batch=2)
    found = {}
    for phase in ("prefill", "decode"):
        given = graph_module(loaded, phase, request)
        passes = serving_passes(rows, grouped=True, force=True)
        if level != "graph":
            passes += pipeline_from(given, level, request.settings())
        found[phase] = PassManager(passes).run(given, Diagnostics())
    return found


@pytest.mark.parametrize(
    ("name", "mesh"), only([(n, m) for n, m, _ in CASES[:4]], ("llama-3h1", "3x4"))
)
def test_levels_agree_on_chunks_groups_and_absent_requests(name: str, mesh: str) -> None:
    """Random rows in two chunks by two groups of layers into the caches of one request, then steps
    in which now one and now the other request is absent: at graph, mesh and tile level."""
    rows = int(mesh.split("x")[1])
    graph = modules(name, mesh, "graph", rows)
    lanes, layers = (graph["prefill"].dims[dim] for dim in ("E", "layers"))
    random = np.random.default_rng(3)
    reading = []
    for start, length in ((0, 2 * rows), (2 * rows, rows + 1)):
        for first, count in ((0, 1), (1, layers - 1)):
            told = {"len": length, "request": 1, "pos": start}
            told |= {"first_layers": first, "count_layers": count}
            reading.append(({"x": random.standard_normal((1, length, lanes))}, told))
    steps = []
    weights = RandomArrays(graph["decode"], 5, {}, ("weight",))
    for positions in ((-1, 3 * rows + 1), (0, -1), (1, 3 * rows + 2)):
        ids = random.integers(0, 9, (2, 1))
        given = {"tokens": ids, "x": np.asarray(weights["embedding"])[ids]}
        steps.append((given, {"pos": positions}))
    read: dict[str, list[Array]] = {}
    logits: dict[str, list[Array]] = {}
    levels: tuple[Level, ...] = ("graph", "mesh", "tile")
    for level in levels:
        made = modules(name, mesh, level, rows)
        outcome = run_from(made["prefill"], Trace(weights, tuple(reading)))
        after = run_from(made["decode"], Trace(weights, tuple(steps)), outcome.state)
        read[level] = outcome.results
        logits[level] = [
            given[np.array(told["pos"]) >= 0]
            for given, (_, told) in zip(after.results, steps, strict=True)
        ]
    for level in levels[1:]:
        for found in (read, logits):
            for ours, theirs in zip(found[level], found["graph"], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_every_pass_keeps_what_chunks_groups_and_steps_compute() -> None:
    loaded = load_any(str(TINY / "llama-9h3-tied"), Diagnostics())
    request = CompileRequest(mesh="3x2", seq=CAPACITY, dtype="f32", batch=2, serving="layers!")
    check = Check()
    compile_loaded(loaded, request, [check])
    assert check.compared >= 24


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"pos": 1}, "no multiple of 2"),
        ({"first_layers": 1, "count_layers": 2}, "layers 1 to 2"),
        ({"pos": CAPACITY, "len": 4}, "do not fit"),
    ],
)
@pytest.mark.parametrize("level", ["graph", "mesh"])
def test_interpreters_refuse_runs_that_there_are_none_of(
    level: Level, told: dict[str, int], words: str
) -> None:
    prefill = modules("llama-9h3-tied", "3x2", level, 2)["prefill"]
    least = {"len": 2, "request": 0, "pos": 0, "first_layers": 0, "count_layers": 1} | told
    given = RandomArrays(prefill, 1, least)
    with pytest.raises(MeshcError, match=words if "fit" not in words else "interp"):
        run_from(prefill, Trace(given, (({}, least),)))
