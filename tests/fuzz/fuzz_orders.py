"""Passes in any order that a person can type, over small modules of all levels.

After every pass each fact that the module claims is checked, its text is read back, and it is run
beside the module in front of the pass. An order ends in a module or in a refusal; everything else
is a fault of a pass: what it has to say is what it requires, establishes and invalidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from fuzz_limits import INPUT_TIME

from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import graph_module
from meshc.interp.check import Trace, check_outcomes, random_trace, run_trace
from meshc.interp.inputs import wanted_inputs
from meshc.interp.named import Array
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.passes.registry import PASSES, parse_pipeline
from meshc.pipelines import RESOURCE_STAGES, STAGES, TASK_STAGES
from meshc.support.diagnostics import Diagnostics, InternalError, MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims
from meshc.verify.given import read_module

ROOT = Path(__file__).parents[2]
_DATA = ROOT / "tests" / "data"
_MODELS = (
    "tiny/llama-3h1",
    "tiny_experts/mixtral-5x2",
    "tiny_families/gemma3-6h2-window",
    "tiny_families/gpt2-3h-untied-f16",
    "tiny_latent_experts/deepseek-v2-8x3",
)
_TENSORS = ("mlp", "matmul", "attention")
_PLACES = (
    ("ideal", "f32", "2x3"),
    ("ideal", "f32", "1x1"),
    ("wse2", "f16", "2x2"),
    ("wse3", "f32", "3x2"),
    ("wse3", "f32", "1x3"),
    ("h100x8", "bf16", "4x1"),
)
"""Devices, element types and meshes that modules are of."""
_USUAL = {
    **STAGES,
    "tile": (*STAGES["tile"], *RESOURCE_STAGES),
    "task": TASK_STAGES[1:],
}
_LEVELS_BEHIND = {"partition": "mesh", "expand-programs": "tile", "expand-tasks": "task"}

OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "choose-token": {"alone": ("false",)},  # alone it makes a program that reads logits
    "chunk-prompts": {"multiple": ("1", "2", "3"), "most": ("0", "2", "6")},
    "group-layers": {"groups": ("0", "1", "2"), "force": ("true", "false")},
    "tensor-parallel": {
        "ranks": ("1", "2", "3"),
        "experts": ("whole", "features"),
        "multiple": ("1", "2", "8"),
        "keep": ("[E]", "[V]", "[]"),
    },
    "fuse-all-reduce": {"multiprocessors": ("0", "4", "16")},
    "batch-tokens": {"tokens": ("2", "8"), "requests": ("1", "2", "4")},
    "split-tokens": {"at": ("0", "1", "4")},
    "partition": {
        "grid": ("1x1", "2x2", "3x2", "1x3", "4x1"),
        "gemm": ("auto", "transposed", "cannon", "summa", "allgather"),
        "align": ("host", "device"),
        "result": ("roots", "everywhere"),
        "kv": ("shift", "cyclic", "concat"),
        "forms": ('["q=gemv_y"]', '["k=gemv_x"]', "[]"),
    },
    "select-gemm": {"algo": ("auto", "cyclic_shift", "cannon", "summa", "allgather", "transposed")},
    "select-dispatch": {"algo": ("auto", "multicast", "ring", "gather", "local")},
    "place-interleave": {"axes": ("all", "none", "y", "x", '"y x"', "xd")},
    "shift-kv-cache": {"policy": ("auto", "shift", "cyclic", "concat")},
    "fuse-collective": {"axis": ("all", "x", "y", "gpu")},
    "select-collective": {
        "algo": ("auto", "pipeline", "ring", "tree", "two_phase", "k_tree", "folded"),
        "k": ("0", "1", "2", "3"),
        "fold": ("true", "false"),
        "segmented": ("true", "false"),
        "both-ways": ("true", "false"),
    },
    "split-regions": {"regions": ("0", "1", "2"), "kept": ('["q8_0"]', "[]")},
    "keep-quantised": {"formats": ('["q8_0"]', '["q4_0"]', "[]"), "block-bytes": ("64", "2048")},
    "code-caches": {"to": ("e4m3", "e5m2")},
    "stream-quantised": {"formats": ('["q8_0"]', '["q4_0?"]', "[]")},
    "expand-tasks": {
        "rows": ("8", "16", "3"),
        "tokens": ("0", "8", "32"),
        "parts": ("1", "2", "3"),
        "merge": ("true", "false"),
        "wide": ("0", "128"),
        "heads": ("true", "false"),
        "lanes": ("1", "2"),
        "splits": ("0", "1", "2"),
        "together": ("0", "1", "2", "16"),
        "columns": ("true", "false"),
    },
    "place-tasks": {"blocks": ("0", "1", "3", "132")},
    "fuse-cluster": {"cluster": ("1", "2", "4")},
    "meet": {"kind": ("counter", "tags")},
    "select-csl-products": dict.fromkeys(
        ("blocks", "rebased", "joined", "fresh"), ("true", "false")
    ),
    "select-csl-functions": dict.fromkeys(
        ("functions", "newton", "across", "angles", "turns", "narrow", "kept", "blocks", "whole"),
        ("true", "false"),
    )
    | {"accuracy": ("half", "single")},
    "assign-csl-registers": {"functions": ("true", "false")},
    "plan-csl-memory": {"share": ("large", "always", "never")},
    "assign-csl-queues": {"portable": ("true", "false")},
    "assign-csl-tasks": {"portable": ("true", "false")},
}
"""Values of options that are drawn, by pass; a few are not for all modules."""


@cache
def _graph(model: str, phase: str, batch: int, name: str, dtype: str) -> str:
    """The text of a small graph."""
    path = ROOT / "examples" / f"{model}.mesh"
    if model not in _TENSORS:
        path = _DATA / model
    loaded = load_any(str(path), Diagnostics())
    language = model not in _TENSORS or model == "attention"
    request = CompileRequest(
        device=name,
        mesh="1x1",
        seq=6 if language else None,
        dtype=dtype,
        batch=batch if model not in _TENSORS else None,
    )
    return print_module(graph_module(loaded, phase if language else "main", request))


@cache
def _lowered(text: str, passes: str) -> str:
    """The text behind the usual passes of some levels; the text itself where they are refused."""
    module = parse_module(Source("graph", text))
    try:
        return print_module(PassManager(parse_pipeline(passes)).run(module))
    except MeshcError:
        return text


@cache
def _written() -> list[str]:
    """Modules that are written by hand for tests of passes, and examples."""
    paths = sorted(
        [*(ROOT / "tests" / "passes").glob("*/*.meshir"), *ROOT.glob("examples/*.meshir")]
    )
    halves = (half for path in paths for half in path.read_text().split("# ---"))
    return [half for half in halves if "module @" in half and len(half) < 20_000]


def _text_of(half: str, random: Random) -> str:
    """The text of a module on some device where it names none; nothing where it is no module."""
    try:
        module = parse_module(Source("half", half))
    except MeshcError:
        return ""
    module.device = module.device or device(random.choice(("ideal", "wse2", "wse3")))
    return print_module(module)


def drawn_order(random: Random) -> tuple[str, str]:
    """The text of a module and passes to run on it, mostly some that its level takes."""
    if random.random() < 0.6:
        text = ""
        while not text:
            text = _text_of(random.choice(_written()), random)
        level = next(known for known in _USUAL if f"level({known})" in text)
        return text, ",".join(_walk(random, level, random.choice(("1x1", "2x2", "3x2", "1x4"))))
    model = random.choice((*_MODELS, *_TENSORS, *_TENSORS))
    phase, batch = random.choice((("decode", 1), ("decode", 2), ("prefill", 1)))
    name, dtype, grid = random.choice(_PLACES)
    text = _graph(model, phase, batch, name, dtype)
    level = random.choice(("graph", "graph", "mesh", "tile"))
    ahead = [*_USUAL["graph"], f"partition{{grid={grid}}}", "select-dispatch", "place-interleave"]
    if level == "tile":
        ahead += ["select-collective", "expand-programs"]
    if level != "graph":
        text = _lowered(text, ",".join(ahead))
    level = next(known for known in _USUAL if f"level({known})" in text)
    return text, ",".join(_walk(random, level, grid))


def _walk(random: Random, level: str, grid: str) -> list[str]:
    """Specs of passes, with the level that each would lead to. Many programs first say all that
    CSL takes of a core, which the passes behind that may change."""
    found: list[str] = []
    if level == "tile" and random.random() < 0.5:
        names = random.sample(RESOURCE_STAGES, len(RESOURCE_STAGES))
        names = list(RESOURCE_STAGES) if random.random() < 0.7 else names
        found = [_with_options(random, name, grid) for name in names if random.random() < 0.8]
    for _ in range(random.randint(2, 12)):
        here = [cls.NAME for cls in PASSES if level in cls.LEVELS]
        done = {spec.partition("{")[0] for spec in found}
        ahead = [name for name in _USUAL[level] if name not in done] or here
        ahead += {"graph": ["partition"], "mesh": ["expand-programs"]}.get(level, [])
        name = random.choice(ahead[:1] if random.random() < 0.65 else here)
        if random.random() < 0.03:
            name = random.choice(PASSES).NAME
        found.append(_with_options(random, name, grid))
        level = _LEVELS_BEHIND.get(name, level)
    return found


def _with_options(random: Random, name: str, grid: str) -> str:
    chosen = {
        option: random.choice(values)
        for option, values in OPTIONS.get(name, {}).items()
        if random.random() < 0.3
    }
    if name == "partition":
        chosen["grid"] = grid
    words = ",".join(f"{option}={value}" for option, value in chosen.items())
    return f"{name}{{{words}}}" if words else name


class Fault(Exception):
    """A pass left something that is not what the module says, or not what it meant."""


class Judge(Instrument):
    """Holds every module to its claims, to its text and to the meaning of the one in front.

    A pass that rounds, or changes what a run is told or given, begins a new comparison.
    ``compared`` counts the passes whose modules were run beside each other.
    """

    def __init__(self, most: int = 2_000_000) -> None:
        self.most, self.compared = most, 0
        self.given: Module | None = None
        self.trace = Trace({}, ())
        self.results: list[Array] | None = None

    @INPUT_TIME.judging()
    def before(self, step: Pass, module: Module) -> None:
        if self.given is None:
            self._begin(module)

    @INPUT_TIME.judging()
    def after(self, step: Pass, module: Module, seconds: float) -> None:
        text = print_module(module)
        again = parse_module(Source("text", text))
        verify_module(again)
        if print_module(again) != text:
            raise Fault(f"{step.NAME}: the text reads back as another module")
        try:
            check_claims(again)
        except MeshcError as error:
            raise Fault(f"{step.NAME} leaves a false claim\n{error}") from error
        assert self.given is not None
        alike = _told(module) == _told(self.given)
        if self.results is None or not alike or step.ROUNDS or self._large(module):
            self._begin(module)
            return
        wanted = self.results
        if step.NAME == "choose-token":
            wanted = [logits.argmax(-1) for logits in wanted]
        try:
            got = run_trace(module, self.trace)
            check_outcomes(self.given, module, wanted, got)
        except MeshcError as error:
            raise Fault(f"{step.NAME} changes the meaning\n{error}") from error
        self.given, self.results = clone_module(module), got
        self.compared += 1

    def _begin(self, module: Module) -> None:
        self.given, self.results = clone_module(module), None
        if self._large(module):
            return
        try:
            self.trace = random_trace(module, 1, steps=2)
            self.results = run_trace(module, self.trace)
        except MeshcError:  # nothing runs it, such as kernels that are not interpreted
            self.results = None
            return
        if not all(np.isfinite(result).all() for result in self.results):
            self.results = None  # a root of a random number, which nothing can be compared with

    def _large(self, module: Module) -> bool:
        size = sum(np.prod(want.type.shape(module.dims)) for want in wanted_inputs(module))
        return bool(size * (module.mesh.cores if module.mesh else 1) > self.most)


def _told(module: Module) -> object:
    """What a run of a module is told and given."""
    wanted = {(w.name, w.role, tuple(w.type.shape(module.dims))) for w in wanted_inputs(module)}
    ranks = module.ranks.count if module.ranks is not None else 1
    return module.scalars, module.multiples, ranks, {name for name, _, _ in wanted}


def run_order(name: str, passes: str) -> int:
    """0, behind the passes on the module in the file ``name``, those that are refused left out.
    Raises what is refused of either text, and every fault."""
    judged_order(
        read_module(Source(name, Path(name).read_text(encoding="utf-8"))), parse_pipeline(passes)
    )
    return 0


def judged_order(module: Module, passes: Sequence[Pass]) -> int:
    """How many of ``passes`` ran, one after the other; what a refused one left behind is thrown
    away. Raises every fault."""
    judge, ran = Judge(), 0
    for step in passes:
        before = clone_module(module)
        try:
            module = PassManager([step], [judge]).run(module)
            ran += 1
        except MeshcError:
            module = before
        except InternalError as error:
            raise Fault(str(error)) from error
    return ran
