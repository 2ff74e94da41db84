"""Cases: a program, how it is compiled, and what it is run on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from bounded import Arithmetic, Bounded, Plain, Rounding, Rules, Storing, rounded
from building import Drawing
from draw_checkpoints import Checkpoint, draw_checkpoint
from draw_clusters import cluster_features, cluster_model, cluster_options, cluster_runs
from draw_forms import draw_forms
from draw_models import Model, cached_model
from draw_options import (
    ALGORITHMS,
    OF_TARGET,
    ON_CORES,
    ON_GPUS,
    flags_of,
    may_keep,
    option_features,
    with_room,
)
from draw_tensors import tensor_program
from drawn_programs import Program, Reference, Repeat, features, source
from kept_weights import kept_of
from serving import Turn, turns

SHARP = {"f32": 1e-3, "f16": 0.06, "bf16": 0.1}
"""A case is judged only if rounding explains less than this part of its largest result."""


TIMES = 4
"""What kernels give may be off by so many units of the model's type of the largest result, or by so
many times what rounding all operands of products moves any result.

Kernels add in f32, and round to the type what they cache, what tensor cores multiply and, for many
heads, the weights of scores; which of these depends on shapes. The bound of running errors takes
all of them at their worst and in one direction, which over heads of 64 lanes explains anything.
Independent errors add like their root: four units are 16 roundings at their worst. Models whose
weights stay quantised on cores have as many terms in a sum; where the steps of a formula are of the
type too, they are rounded twice as often. Cores store what every operation gives, some forty times
in two layers, which moves two logits of a small vocabulary by less than it may; what it moves any
result of a case by counts for all of them.
"""
SUMS = 8
"""So many times more where sums are of the model's type, of up to two hundred terms: independent
roundings of these add up to as much."""
_NEIGHBOURS = 20
"""So many cases in a row share what :func:`draw_clusters.cluster_model` calls common."""


class Unsharp(Exception):
    """Values leave the range of their type, or rounding may explain too much."""


@dataclass(frozen=True)
class Case:
    """``form`` is main, generate, batch, answers, decode, prefill or requests; ``prompt`` counts
    its tokens or rows (of several those of the longest one), ``steps`` the runs. ``options`` are
    arguments of ``meshc.compile``; ``seed`` is that of all numbers; with ``order`` the cores are
    numbered at random, and tasks run block by block. ``softmax`` is the form that softmaxes take
    where they have it. ``kept`` are the shapes, by name, of what the program has of weights that
    stay quantised."""

    program: Program
    target: str
    form: str
    options: dict[str, Any]
    seed: int
    prompt: int = 0
    steps: int = 1
    order: bool = False
    softmax: str = ""
    origin: str = ""
    kept: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def kinds(self) -> Arithmetic:
        """The types that it computes with."""
        return self.program.kinds

    @property
    def group(self) -> str:
        """What it is counted as."""
        return f"{self.target} answers" if self.form == "answers" else self.target

    def text(self) -> str:
        """The model in the language."""
        return source(self.program)

    @property
    def plane(self) -> tuple[int, int]:
        """Columns and rows of the mesh."""
        named = dict(re.findall(r"([yx])=(\d+)", self.options["mesh"]))
        sizes = (named["x"], named["y"]) if named else self.options["mesh"].split("x")
        return int(sizes[0]), int(sizes[1])

    def on_plane(self, columns: int, rows: int, regions: int = 0) -> Case:
        """The same on a mesh of another size, of so many ``regions`` where they are given and else
        of as many as there are."""
        named = dict(re.findall(r"(r)=(\d+)", self.options["mesh"]))
        count = regions or int(named.get("r", 0))
        mesh = f"r={count},y={rows},x={columns}" if count else f"{columns}x{rows}"
        return replace(self, options={**self.options, "mesh": mesh})

    @property
    def has_layers(self) -> bool:
        """Whether there are layers that regions of a mesh may share."""
        return "mesh" in self.options and any(isinstance(s, Repeat) for s in self.program.body)

    @property
    def capacity(self) -> int:
        """Tokens that fit the caches."""
        return int(self.options.get("seq", 0))

    def numbers(self, name: str, shape: tuple[int, ...], run: int = 0) -> np.ndarray:
        """A tensor of the case: the same for the same seed, name and run."""
        random = np.random.default_rng([self.seed, run, crc32(name.encode())])
        values = random.standard_normal(shape)
        if name.rstrip("0123456789") == "g":
            values = 1 + 0.3 * values
        return rounded(values.astype(np.float32), self.program.kinds.stored)

    def weights(self) -> dict[str, np.ndarray]:
        """All params; of those that stay quantised the numbers that codes stand for, in float64."""
        plain = self._weights()
        self._kept_parts(plain)
        return plain

    def given(self) -> dict[str, np.ndarray]:
        """What the program is given for weights: params, or their codes and scales."""
        plain = self._weights()
        found = self._kept_parts(plain)
        if self.target == "cuda":
            return found
        codes = (name for name in found if name.endswith(".codes"))
        return {name: found[name].astype(np.float32) for name in found} | {
            name: found[name].astype(np.uint8) for name in codes
        }

    def _kept_parts(self, plain: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``plain`` and parts of weights that stay quantised, which become other numbers there."""
        for name in {name.split(".")[0] for name, _ in self.kept}:
            plain[name] = plain[name].astype(np.float64)
        return kept_of(dict(self.kept), plain, self.seed, "table")

    def _weights(self) -> dict[str, np.ndarray]:
        """Params as drawn; those of products are as large as keeps sums as large as their
        factors."""
        found = {}
        for name, shape in self.program.weight_shapes().items():
            stacked = len(shape) - len(self._dims(name))
            inner = shape[stacked:]
            size = 1.0 if len(inner) == 1 else max(inner) ** -0.5
            found[name] = rounded(
                (self.numbers(name, shape) * np.float32(size)), self.program.kinds.stored
            )
        return found

    def _dims(self, name: str) -> tuple[str, ...]:
        program = self.program
        loops = [p for s in program.body for p in getattr(s, "params", ())]
        return next(p.dims for p in (*program.params, *loops) if p.name == name)

    def inputs(self, run: int) -> dict[str, np.ndarray]:
        """What run number ``run`` is given, token ids left out."""
        found = {}
        for tensor in self.program.inputs:
            rows = self.prompt if self.form == "prefill" else 1
            extents = [
                rows if d == "L" and self.form != "main" else n for d, n in self._sizes(tensor)
            ]
            found[tensor.name] = self.numbers(tensor.name, tuple(extents), run)
        return found

    def _sizes(self, tensor: Any) -> list[tuple[str, int]]:
        extents = {"B": 1, "L": 1, **self.program.extents}
        return [(d, extents[d]) for d in tensor.dims]

    def ids(self) -> list[int]:
        """The prompt."""
        random = np.random.default_rng([self.seed, 7])
        return [int(i) for i in random.integers(0, self.program.extents["V"], self.prompt)]

    def prompts(self) -> list[list[int]]:
        """Those of a batch: the prompt and others that are no longer, not always as many as there
        is room for."""
        random = np.random.default_rng([self.seed, 13])
        most = int(self.options.get("batch", 1))
        if self.form == "answers" and most == 1 and "serving" not in self.options:
            most = 2  # one after the other
        count = random.integers(1, most + 1)
        lengths = random.integers(1, self.prompt + 1, count - 1)
        others = [random.integers(0, self.program.extents["V"], n).tolist() for n in lengths]
        return [*others[: count // 2], self.ids(), *others[count // 2 :]]

    def turns(self) -> list[list[Turn]]:
        """Who takes which tokens in each step, in the form of requests."""
        batch = int(self.options.get("batch", 1))
        return turns(self.seed, batch, self.prompt, self.steps, self.program.extents["V"])

    def words(self) -> str:
        """The command line that compiles the program, and what it is run on."""
        flags = flags_of(self.options)
        runs = f"{self.form}, {self.steps} steps, prompt {self.prompt}, numbers of seed {self.seed}"
        if self.softmax:
            runs += f", softmax {self.softmax}"
        return f"meshc compile case.mesh --target {self.target} {flags}\n# {runs}  ({self.origin})"

    def features(self) -> set[str]:
        """What takes part, in words, for counting."""
        options = self.options
        found = features(self.program) | {f"target {self.target}", f"form {self.form}"}
        found |= {f"algo {a}" for a in options.get("algo", ())}
        found |= option_features(options) if self.form == "answers" else set()
        for name in _COUNTED:
            if name in options:
                found.add(f"{name} {options[name]}")
        if self.softmax:
            found.add(f"softmax {self.softmax}")
        if self.form == "requests":
            return found | cluster_features(self.program)
        if "mesh" not in options:
            return found
        columns, rows = self.plane
        if "=" in options["mesh"]:
            found.add("regions")
        shape = (
            "1x1" if columns * rows == 1 else "one row or column" if 1 in (columns, rows) else ""
        )
        found.add(f"mesh {shape or ('square' if columns == rows else 'not square')}")
        return found


_COUNTED = ("kv", "align", "dtype", "result", "device", "page", "batch", "cluster", "dataflow")
"""Options whose values are counted."""


AnyCase = Case | Checkpoint


def draw_case(seed: int, index: int, targets: dict[str, float]) -> AnyCase:
    """Case number ``index`` of a run with ``seed``; the same for the same arguments."""
    random = Random(f"{seed}:{index}")
    draw = Drawing(random)
    kind = draw.weighted(targets)
    own = Drawing(Random(f"{seed}:{index}:forms"))
    if kind == "checkpoints":
        whole = draw_checkpoint(draw, seed, index)
        return _with_forms(own, whole, whole.place) if own.chance(_PINNED) else whole
    drawn = _DRAWN[kind](draw, lambda: Drawing(Random(f"{seed}:{index // _NEIGHBOURS}:common")))
    merges = Random(f"{seed}:{index}:softmax").random() < 0.5
    for attempt in count():
        case = drawn(attempt)
        case = replace(case, seed=random.randrange(2**31), origin=f"--seed {seed} --case {index}")
        if merges and case.target == "python" and case.form in _DECODING:
            case = replace(case, softmax="merged")
        if case.form == "answers" and own.chance(_PINNED):
            case = _with_forms(own, case, case.text())
        try:
            expected(case)
        except Unsharp:
            continue
        return case
    raise AssertionError


_PINNED = 15
"""In how many of a hundred models for cores forms are pinned."""


def _with_forms(draw: Drawing, case: AnyCase, model: str | Path) -> AnyCase:
    """The same for cores as steps of decoding, some of whose forms are pinned."""
    if case.target not in ("python", "csl"):
        return case
    others = ("phase", "phases", "serving", "chunk")
    options = {n: v for n, v in case.options.items() if n not in others}
    pinned = draw_forms(draw, model, options["seq"])
    return replace(case, options={**options, "phase": "decode", "form": pinned})


_DECODING = ("generate", "batch", "decode")
_FORMS = {"main": 58, "generate": 30, "decode": 8, "prefill": 4}


Attempts = Callable[[int], Case]
"""Draws a case; the argument counts those before that rounding blurs too much."""
Common = Callable[[], Drawing]
"""A source that makes the same choices for some cases in a row."""


def _python_cases(draw: Drawing, common: Common) -> Attempts:
    form = draw.weighted(_FORMS)
    kinds = _kinds(draw, 60 if form == "main" else 75)
    # What is blurred in a small type is drawn in f32 in the end.
    return lambda attempt: _python(draw, form, kinds if attempt < 40 else Arithmetic())


def _csl_cases(draw: Drawing, common: Common) -> Attempts:
    form = draw.weighted({"main": 50, "decode": 30, "prefill": 20})
    kinds = _csl_kinds(draw)
    return lambda attempt: _csl(draw, form, kinds if attempt < 40 else Arithmetic())


def _cuda_cases(draw: Drawing, common: Common) -> Attempts:
    if draw.chance(12):
        drawn = _python_cases(draw, common)
        return lambda attempt: asked_of_cuda(drawn(attempt))
    return lambda attempt: _cuda(draw, common())


def asked_of_cuda(case: Case) -> Case:
    """A case of Python for the target cuda, which makes kernels of decode steps alone. Tokens of a
    model are those of a request, not those that it would choose itself."""
    kept = {n: v for n, v in case.options.items() if n in ("seq", "dtype", "phase")}
    form = "requests" if case.form in ("generate", "batch") else case.form
    return replace(case, target="cuda", form=form, options=kept, order=False, softmax="")


def on_gpus(case: Case, gpus: int) -> Case:
    """A case of Python on a node, where products of many rows have forms of their own."""
    more = {"device": "h100x8", "mesh": f"{gpus}x1", "dtype": case.program.kinds.stored}
    return replace(case, options={**case.options, **more})


def in_regions(case: Case, regions: int) -> Case:
    """The same with its layers dealt to ``regions`` of its mesh."""
    origin = f"{case.origin} --regions {regions}"
    return replace(case.on_plane(*case.plane, regions), order=False, origin=origin)


def _task_cases(draw: Drawing, common: Common) -> Attempts:
    """Steps of decoding as for Python, as programs of tasks of a drawn grain."""
    kinds = _kinds(draw, 75)
    grain = {"rows": draw.of([1, 2, 4, 16]), "tokens": draw.of([1, 2, 3, 8]), "blocks": 5}
    grain |= {"parts": draw.of([1, 1, 2, 3]), "merge": draw.of(["true", "false"])}

    def drawn(attempt: int) -> Case:
        case = _python(draw, "decode", kinds if attempt < 40 else Arithmetic())
        options = {"seq": case.options["seq"], "dtype": case.program.kinds.stored, **grain}
        return replace(case, target="tasks", options=options, order=draw.chance(50))

    return drawn


def _answer_cases(draw: Drawing, common: Common) -> Attempts:
    """Models of tokens with any options, for any target."""
    target = draw.weighted({"python": 57, "csl": 18, "cuda": 25})
    options = OF_TARGET[target](draw)
    keeps = may_keep(options) and draw.chance(25)
    if keeps:
        # Steps alone read weights that stay quantised on cores.
        of_prompts = ("phases", "serving", "phase") if target != "cuda" else ()
        options = {n: v for n, v in options.items() if n not in of_prompts}
        options["keep_quantised"] = (f"all={draw.of(ON_GPUS if target == 'cuda' else ON_CORES)}",)
    kinds = {"python": lambda: _kinds(draw, 75), "csl": lambda: _csl_kinds(draw)}

    def drawn(attempt: int) -> Case:
        own, given = dict(options), Arithmetic()
        if target == "cuda":
            program = cluster_model(draw, common())
            prompt, steps = cluster_runs(draw, program)
            if "gpus" in own and "chunk" not in own:  # whose steps the executor runs one by one
                prompt, steps = min(prompt, 6), min(steps, 2)
        else:
            given = kinds[target]() if attempt < 40 else Arithmetic()
            program = (
                _whole_groups(draw, given) if keeps else cached_model(draw.random, given, True)
            )
            prompt, steps = draw.number(1, 8), draw.number(1, 4)
        own["dtype"] = program.kinds.stored
        tokens = prompt + steps - 1 + own.get("drafts", 0)
        own = with_room(own, tokens + (0 if draw.chance(30) else draw.number(0, 6)))
        return Case(program, target, "answers", own, 0, prompt, steps)

    return drawn


_ODDNESS = 0.1


def _whole_groups(draw: Drawing, kinds: Arithmetic) -> Program:
    """A model most of whose weights can stay quantised on cores, by groups of their rows."""
    groups = draw.weighted({1: 60, 2: 40})
    extents = {
        "E": 32 * draw.number(1, 3),
        "H": groups * draw.number(1, 2),
        "G": groups,
        "D": draw.of([16, 32, 32, 64]),
        "F": 32 * draw.number(1, 4),
        "V": draw.number(2, 24),
    }
    # Where norms are missing, sums of so many terms leave the range of their type.
    return Model(draw, draw, extents, _ODDNESS).program(kinds, tokens=True)


_DRAWN = {
    "python": _python_cases,
    "csl": _csl_cases,
    "cuda": _cuda_cases,
    "tasks": _task_cases,
    "answers": _answer_cases,
}


def _kinds(draw: Drawing, plain: int) -> Arithmetic:
    stored = draw.weighted({"f32": plain, "f16": 0.6 * (100 - plain), "bf16": 0.4 * (100 - plain)})
    return Arithmetic(stored, stored if draw.chance(20) else "f32")


def _csl_kinds(draw: Drawing) -> Arithmetic:
    stored = draw.weighted({"f32": 45, "f16": 55})
    return Arithmetic(stored, stored if draw.chance(30) else "f32", stored)


def _mesh(draw: Drawing, most: int = 5) -> str:
    if draw.chance(6):
        return draw.of(["7x2", "2x7", "6x4", "7x3", "1x7", "7x1"])
    return f"{draw.number(1, most)}x{draw.number(1, most)}"


def _algorithms(draw: Drawing) -> dict[str, Any]:
    found = []
    if draw.chance(50):
        found.append(f"gemm={draw.of(ALGORITHMS['gemm'])}")
    if draw.chance(50):
        found.append(f"all_reduce={draw.of(ALGORITHMS['all_reduce'])}")
    options: dict[str, Any] = {"algo": tuple(found)} if found else {}
    if draw.chance(20):
        options["align"] = draw.of(["host", "device"])
    if draw.chance(12):
        options["result"] = draw.of(["roots", "everywhere"])
    return options


def _python(draw: Drawing, form: str, kinds: Arithmetic) -> Case:
    options = {"mesh": _mesh(draw), **_algorithms(draw)}
    if kinds.stored != "f32" or draw.chance(30):
        options["dtype"] = kinds.stored
    if form == "main":
        program = tensor_program(draw.random, kinds)
        return Case(program, "python", form, options, 0, 0, draw.number(1, 2), draw.chance(20))
    program = cached_model(draw.random, kinds, form == "generate")
    prompt = draw.number(1, 8)
    steps = 1 if form == "prefill" else draw.number(1, 4)
    used = prompt if form == "prefill" else steps if form == "decode" else prompt + steps - 1
    options["seq"] = used + (0 if draw.chance(30) else draw.number(0, 6))
    if draw.chance(60):
        options["kv"] = draw.of(["shift", "concat", "cyclic"])
    if form != "generate":
        options["phase"] = form
    elif draw.chance(12):
        options["phase"] = "decode"
    if form == "generate" and draw.chance(30):
        form, options["batch"] = "batch", draw.weighted({2: 40, 3: 30, 4: 20, 7: 10})
    return Case(program, "python", form, options, 0, prompt, steps, draw.chance(15))


def _csl(draw: Drawing, form: str, kinds: Arithmetic) -> Case:
    options = {"mesh": _mesh(draw, 4), "device": draw.of(["wse2", "wse3"]), "dtype": kinds.stored}
    options |= _algorithms(draw)
    if draw.chance(10):
        options["portable"] = True
    if form == "main":
        return Case(tensor_program(draw.random, kinds, most=3, largest=7), "csl", form, options, 0)
    prompt, steps = (draw.number(1, 8), 1) if form == "prefill" else (0, draw.number(1, 4))
    options |= {"phase": form, "seq": max(prompt, steps)}
    options["seq"] += 0 if draw.chance(30) else draw.number(0, 6)
    if draw.chance(60):
        options["kv"] = draw.of(["shift", "concat", "cyclic"])
    return Case(cached_model(draw.random, kinds, False), "csl", form, options, 0, prompt, steps)


def _cuda(draw: Drawing, common: Drawing) -> Case:
    program = cluster_model(draw, common)
    options = cluster_options(draw, common, program)
    prompt, steps = cluster_runs(draw, program)
    options["seq"] = prompt + steps - 1 + (0 if draw.chance(30) else draw.number(0, 40))
    return Case(program, "cuda", "requests", options, 0, prompt, steps)


def expected(case: Case, chosen: list[int] | None = None) -> list[list[Bounded]]:
    """The results of every run. Of a model of tokens ``chosen`` are those that it generated (any,
    when it has not run). Raises :class:`Unsharp`."""
    if isinstance(case, Checkpoint):
        return case.expected(chosen)
    if case.target == "cuda" or "keep_quantised" in case.options:
        found, scale = _computed(case, chosen, Plain)
        moved, _ = _computed(case, chosen, Rounding if case.target == "cuda" else Storing)
        pairs = [[*zip(*runs, strict=True)] for runs in zip(found, moved, strict=True)]
        if case.target == "cuda":
            found = [[off_by_rounding([pair], case.kinds)[0] for pair in run] for run in pairs]
        else:
            errors = iter(off_by_rounding([pair for run in pairs for pair in run], case.kinds))
            found = [[next(errors) for _ in run] for run in pairs]
        if "kv_dtype" in case.options:
            plain, _ = _computed(case, chosen, Plain, coded=False)
            both = (zip(*runs, strict=True) for runs in zip(found, plain, strict=True))
            found = [[_rounded_otherwise(*pair) for pair in run] for run in both]
    else:
        found, scale = _computed(case, chosen, Rules)
    _check_scale(case, scale)
    sharp = max(SHARP[case.program.kinds.stored], SHARP[case.program.kinds.sums])
    for result in (r for run in found for r in run):
        size = np.abs(result.value).max()
        if not size > 1e-6 or not result.error.max() <= sharp * size:
            raise Unsharp(f"{result.error.max()} of {size}")
    return found


def computed(case: Case) -> list[list[Bounded]]:
    """The results of every run without their errors. Raises :class:`Unsharp` where values leave the
    range of their type."""
    found, scale = _computed(case, None, Plain)
    _check_scale(case, scale)
    return found


def _check_scale(case: Case, scale: float) -> None:
    limit = 3e4 if "f16" in (case.program.kinds.stored, case.program.kinds.sums) else 1e9
    if not scale < limit:
        raise Unsharp(f"values up to {scale}")


def _computed(
    case: Case, chosen: list[int] | None, rules: type[Rules], coded: bool = True
) -> tuple[list[list[Bounded]], float]:
    """The results of every run by these rules, and the largest value on the way."""
    reference = Reference(case.program, case.weights(), case.capacity, rules)
    reference.scope.coded = coded and "kv_dtype" in case.options
    if case.softmax == "merged":
        reference.scope.rules.merges = case.plane[1] - 1
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = list(_RUNS[case.form](case, reference, chosen))
    return found, reference.scope.rules.largest


def off_by_rounding(pairs: Sequence[tuple[Bounded, Bounded]], kinds: Arithmetic) -> list[Bounded]:
    """Results, each with what it is when rounding moves it, with the error that kernels may have,
    as large for all of them: see :data:`TIMES`."""
    times = TIMES if kinds.inner_unit < kinds.unit else 2 * TIMES
    times = times if kinds.sum_unit < kinds.unit else SUMS * TIMES
    most = max(
        max(kinds.unit * np.abs(own.value).max(), np.abs(moved.value - own.value).max())
        for own, moved in pairs
    )
    return [replace(own, error=np.full_like(own.value, times * most)) for own, _ in pairs]


def _rounded_otherwise(coded: Bounded, plain: Bounded) -> Bounded:
    """The result over caches of eight bits, of which some elements may be rounded to a neighbour:
    that moves it by no more than coding all of them does."""
    moved = np.abs(coded.value - plain.value).max()
    return replace(coded, error=np.maximum(coded.error, moved))


def _main(case: Case, reference: Reference, chosen: list[int] | None):
    for run in range(case.steps):
        yield reference.step(case.inputs(run))


def _generate(case: Case, reference: Reference, chosen: list[int] | None):
    ids = case.ids()
    name = case.program.tokens
    if len(ids) > 1:
        reference.step({name: np.array(ids[:-1])}, 0, True)
    token = ids[-1]
    for run in range(case.steps):
        (logits,) = reference.step({name: np.array([token])}, len(ids) - 1 + run)
        yield [logits]
        token = chosen[run] if chosen else int(logits.value.argmax())


def _batch(case: Case, reference: Reference, chosen: list[int] | None):
    """Each prompt as if it were alone: caches of its own, the same numbers. Of what was generated
    the tokens of a step stand side by side."""
    caches: dict[int, dict] = defaultdict(dict)
    name, prompts = case.program.tokens, case.prompts()
    tokens = [ids[-1] for ids in prompts]
    for request, ids in enumerate(prompts):
        reference.scope.caches = caches[request]
        if len(ids) > 1:
            reference.step({name: np.array(ids[:-1])}, 0, True)
    for run in range(case.steps):
        results = []
        for request, ids in enumerate(prompts):
            reference.scope.caches = caches[request]
            results += reference.step({name: np.array([tokens[request]])}, len(ids) - 1 + run)
        yield results
        best = [int(result.value.argmax()) for result in results]
        tokens = chosen[run * len(prompts) :][: len(prompts)] if chosen else best


def _decode(case: Case, reference: Reference, chosen: list[int] | None):
    for run in range(case.steps):
        yield reference.step(case.inputs(run), run)


def _prefill(case: Case, reference: Reference, chosen: list[int] | None):
    yield reference.step(case.inputs(0), 0, True)


def _requests(case: Case, reference: Reference, chosen: list[int] | None):
    """Each request as if it were alone: caches of its own, the same numbers."""
    caches: dict[int, dict] = defaultdict(dict)
    name = case.program.tokens
    for step in case.turns():
        results = []
        for turn in step:
            reference.scope.caches = caches[turn.request]
            *before, last = turn.ids
            if before:
                reference.step({name: np.array(before)}, turn.cached, True)
            results += reference.step({name: np.array([last])}, turn.cached + len(before))
        yield results


_RUNS = {
    "main": _main,
    "generate": _generate,
    "batch": _batch,
    "answers": _batch,
    "decode": _decode,
    "prefill": _prefill,
    "requests": _requests,
}
