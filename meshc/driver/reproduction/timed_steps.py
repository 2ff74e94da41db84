"""Steps that an H200 was timed at, beside the event model of task programs.

Those that constants are fitted to are of the persistent step as it was then. Its products are dealt
over the blocks as tasks are. Its attention is not: as many blocks as have at least four tiles of
tokens share those of a key head in contiguous runs, where a task program has a fixed number of
splits that take runs of 32 tokens in turn. That is changed here in the work of a task program
before it is timed. Others are of task programs as they were emitted at first: the
warp that brings tiles looked up each tile's pages once it had found a place for it, which made
attention slower; and of the steps that the command made later that day. All these are predicted by
the numbers that were fitted to the first ones. The last are of the steps that the command makes
since, three of which the numbers of the device's file are fitted to; and two in clusters of blocks.
In all of them a block looked up the pages of its cached tokens tile by tile, and those of task
programs left room for sums of eight vectors and more; both have changed since (:func:`as_timed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp

from meshc.backends.request import CompileRequest
from meshc.cost.predictions import inputs_of
from meshc.cost.tasks.blocks import Ring
from meshc.cost.tasks.phase_times import StepTime, time_of_work
from meshc.cost.tasks.stages import (
    SUMS_BYTES,
    FamilyWork,
    LoopWork,
    Meeting,
    PhaseWork,
    Stage,
    TaskWork,
)
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import Device, Number, device
from meshc.driver.compiling import compile_loaded
from meshc.driver.models import load_any
from meshc.driver.planning.parts import part_of
from meshc.driver.reproduction.compared import Compared, Section, compared, not_modelled, role_of
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.published import Row, table
from meshc.support.diagnostics import Diagnostics

L2_BYTES = 62_914_560 / 2
"""What lies in an H200's L2 at once, half of what it has: what multiprocessors read of the other
half lies in both. What comes is taken to replace any of it alike."""
FLYING = 4
SUMS_THEN = 8
"""Vectors of which a block had room for sums, at the least."""
LEAST_TILES = 4
CAPACITY, CAPACITY_OF_BATCHES = 16385, 4112
MOST_CAPACITY = {
    "codellama-34b": 4097,
    "smollm2-135m": 1025,
    "qwen3-30b-a3b": 4112,
    "gpt-oss-20b": 4112,
    "deepseek-v2-lite": 4112,
    "mixtral-8x7b": 4112,
}
"""Tokens that the caches of these models had room for."""
EMITTED_ASKING_NS = 703
"""From one tile of cached tokens to the next in the task programs as first emitted: what 12288 more
tokens took Llama-2-7B, by the tiles of a block."""
THEN: Mapping[str, float | str] = {
    "ready_ns": 2650,
    "attention_asking_ns": 475,
    "bytes_in_flight": 65_536,
}
"""Numbers of the device of which the earlier programs are predicted: two that were fitted to the
persistent step, and the four tiles that were on their way to a block."""
OWN_OPTIONS = {
    model: f"parts=4,merge={merge},wide=32768"
    for model, merge in {
        "llama-2-7b": "false",
        "llama-3-8b": "true",
        "codellama-34b": "true",
        "smollm2-135m": "false",
        "qwen3-30b-a3b": "true",
        "gpt-oss-20b": "true",
        "deepseek-v2-lite": "true",
        "mixtral-8x7b": "true",
    }.items()
}
"""Options of expand-tasks that the command chooses."""
_EVENTS = "events of blocks (docs/step-times.md)"


def tasks_of(
    model: str,
    capacity: int,
    batch: int = 1,
    rows: int = 16,
    more: str = "",
    meet: str = "",
    where: str | Device = "h200",
    dtype: str = "f16",
) -> Module:
    """A model's decode step as a module of the task level for an H200, with so many rows of a
    weight to a task, ``more`` options of expand-tasks and meetings of the kind ``meet``. Without
    one blocks are taken to meet by a counter in front of each phase, which ``meet`` finds after a
    while (``tests/cost/test_task_steps.py`` holds it against that)."""
    passes = f"expand-tasks{{rows={rows}{more and ',' + more}}},place-tasks"
    passes += f",meet{{kind={meet}}}" if meet else ""
    request = CompileRequest(
        target="cuda", device=where, phase="decode", dtype=dtype, seq=capacity, batch=batch
    )
    graph = part_of(load_any(model, Diagnostics()), request)
    return PassManager(parse_pipeline(passes)).run(graph)


@dataclass(frozen=True)
class Recorded:
    """A timed step, in microseconds, of so many requests behind so many cached tokens; ``options``
    of expand-tasks where the program is of tasks; blocks in clusters of ``cluster``, if any."""

    program: str
    model: str
    batch: int
    options: str
    cached: int
    us: float
    cluster: int = 0


def recorded(program: str) -> tuple[Recorded, ...]:
    """The steps of a table of ``recorded_h200``."""
    return tuple(_recorded(program, row) for row in table("recorded_h200", program).rows)


def _recorded(program: str, row: Row) -> Recorded:
    model, batch, cached = row.text("model"), row.whole("batch"), row.whole("cached")
    how = row.text("options"), cached, row.number("us"), row.whole("cluster")
    return Recorded(program, model, batch, *how)


@cache
def work_of_kernel(model: str, cached: int) -> tuple[Stage, ...]:
    """What the tasks of the persistent kernel do for a step."""
    module = _module(model)
    dims = module.dims
    work = as_timed(work_of(module, {"pos": cached}), sums=1)
    return tuple(_by_kernel(work, dims, module.the_device(), cached))


@cache
def _module(model: str) -> Module:
    return tasks_of(model, CAPACITY)


def _by_kernel(
    stages: Sequence[Stage], dims: Mapping[str, int], device: Device, cached: int
) -> list[Stage]:
    """``stages`` with the attention of the kernel, and the reading of what it leaves."""
    found: list[Stage] = []
    keys, heads, lanes = dims["G"], dims["H"], dims["D"]
    tokens = device.whole("tile_bytes") // (4 * lanes)
    splits = max(min(cached // (LEAST_TILES * tokens), device.cores // keys), 1)
    for stage in stages:
        if isinstance(stage, LoopWork):
            stage = replace(stage, body=tuple(_by_kernel(stage.body, dims, device, cached)))
        elif isinstance(stage, Meeting):
            pass
        elif stage.name == "attend":
            (family,) = stage.families
            first = family.tasks[0]
            tile, count = replace(first.pieces[0], bytes=4 * lanes * tokens), -(-cached // tokens)
            runs = [count * (s + 1) // splits - count * s // splits for s in range(splits)]
            tasks = tuple(TaskWork((tile,) * n, first.own) for _ in range(keys) for n in runs)
            stage = replace(stage, families=(replace(family, tasks=tasks),))
        elif stage.name == "o":
            (family,) = stage.families
            records = {"records": (4 * splits * heads * (lanes + 4), False)}
            stage = replace(stage, families=(replace(family, read=records),))
        found.append(stage)
    return found


def as_timed(stages: Sequence[Stage], sums: int = SUMS_THEN) -> tuple[Stage, ...]:
    """The work of a program as it was timed: pages of cached tokens are looked up tile by tile, and
    a block's warps have room for sums of so many vectors at the least."""

    def timed(family: FamilyWork) -> FamilyWork:
        own = family.width and not family.beside_vectors
        held = family.held + (SUMS_BYTES * max(sums - family.vectors, 0) if own else 0)
        kinds = {
            one: replace(one, pieces=tuple(replace(p, looked_up=1) for p in one.pieces))
            for one in dict.fromkeys(family.tasks)
        }
        return replace(family, held=held, tasks=tuple(kinds[one] for one in family.tasks))

    found: list[Stage] = []
    for stage in stages:
        if isinstance(stage, LoopWork):
            stage = replace(stage, body=as_timed(stage.body, sums))
        elif isinstance(stage, PhaseWork):
            stage = replace(stage, families=tuple(map(timed, stage.families)))
        found.append(stage)
    return tuple(found)


def _work_as_timed(module: Module, cached: int) -> tuple[Stage, ...]:
    return as_timed(work_of(module, {"pos": cached}))


def kernel_ring(model: str, cached: int, flying: int = FLYING, ahead: int = 0) -> Ring:
    """The ring of the persistent kernel, whose warps have sums of one vector."""
    times = times_then(_module(model).the_device())
    stages = work_of_kernel(model, cached)
    widest = max(f.held for stage in stages for phase in _phases(stage) for f in phase.families)
    kept = exp(-ahead * times.tile * times.device.cores / L2_BYTES)
    ring = times.ring(widest)
    return replace(ring, flying=flying, ahead=ahead, kept=kept)


def _phases(stage: Stage) -> list[PhaseWork]:
    if not isinstance(stage, LoopWork):
        return [stage] if isinstance(stage, PhaseWork) else []
    return [phase for inner in stage.body for phase in _phases(inner)]


def with_numbers(device: Device, numbers: Mapping[str, float | str]) -> Device:
    """``device`` with some of its numbers replaced."""
    changed = {name: Number(value, "assumed", "here") for name, value in numbers.items()}
    return replace(device, numbers={**device.numbers, **changed})


def times_then(device: Device) -> TileTimes:
    """Times of programs that asked for tiles in front of a meeting as they did behind it."""
    early = {"early_bytes_in_flight": device.bytes_in_flight}
    return TileTimes(with_numbers(device, early))


def predicted(
    step: Recorded, device: Device | None = None, flying: int = FLYING, ahead: int = 0
) -> StepTime:
    """What the model expects of a step of the persistent kernel."""
    times = times_then(device or with_numbers(_module(step.model).the_device(), THEN))
    ring = kernel_ring(step.model, step.cached, flying, ahead)
    return time_of_work(work_of_kernel(step.model, step.cached), times, ring)


def predicted_of_tasks(step: Recorded) -> StepTime:
    """What it expects of a step of a task program, as these were timed."""
    capacity = CAPACITY if step.batch == 1 else CAPACITY_OF_BATCHES
    module = tasks_of(step.model, capacity, step.batch, more=step.options)
    numbers = {**THEN, "attention_asking_ns": EMITTED_ASKING_NS}
    device = with_numbers(module.the_device(), numbers)
    return time_of_work(_work_as_timed(module, step.cached), times_then(device))


def predicted_of_own(step: Recorded) -> StepTime:
    """What it expects of a step as the command made it, whose blocks met by a counter."""
    capacity = CAPACITY if step.batch == 1 else CAPACITY_OF_BATCHES
    module = tasks_of(step.model, capacity, step.batch, more=OWN_OPTIONS[step.model])
    device = with_numbers(module.the_device(), THEN)
    return time_of_work(_work_as_timed(module, step.cached), times_then(device))


def predicted_of_made(step: Recorded, device: Device | None = None) -> StepTime:
    """What it expects of a step as the command makes it, whose blocks meet by tags or, where its
    row says so, by a counter."""
    capacity = CAPACITY if step.batch == 1 else CAPACITY_OF_BATCHES
    meet = step.options or "tags"
    module = _made(
        step.model, min(capacity, MOST_CAPACITY.get(step.model, capacity)), step.batch, meet
    )
    times = times_then(device or module.the_device())
    return time_of_work(_work_as_timed(module, step.cached), times)


@cache
def _made(model: str, capacity: int, batch: int, meet: str) -> Module:
    return tasks_of(model, capacity, batch, more=OWN_OPTIONS[model], meet=meet)


def predicted_of_clusters(step: Recorded) -> StepTime:
    """What it expects of a step as the command makes it for clusters."""
    request = CompileRequest(
        target="cuda", device="h200", dtype="f16", seq=step.cached + 1, cluster=step.cluster
    )
    made = compile_loaded(load_any(step.model, Diagnostics()), request, trial=True, verified=False)
    module = made.modules["decode"]
    return time_of_work(_work_as_timed(module, step.cached), times_then(module.the_device()))


_PREDICTED: Mapping[str, Callable[[Recorded], StepTime]] = {
    "persistent": predicted,
    "tasks": predicted_of_tasks,
    "own": predicted_of_own,
    "made": predicted_of_made,
    "clusters": predicted_of_clusters,
}
_NOT_FOLLOWED = {
    "persistent-graph": "the same step, launched in a graph",
    "several-graph": "steps of several kernels have no event model",
}
TABLES = ("persistent", "tasks", "own", "made", "clusters", *_NOT_FOLLOWED)


def steps(program: str) -> Section:
    """A table of recorded steps."""
    own = table("recorded_h200", program)

    def rows() -> Iterator[Compared]:
        for row in own.rows:
            if program in _NOT_FOLLOWED:
                yield from not_modelled(own, _NOT_FOLLOWED[program], [row])
            else:
                found = _PREDICTED[program](_recorded(program, row))
                role = role_of(row, "us")
                yield compared(own, row, "us", 1e6 * found.seconds, role)

    found = tuple(rows())
    seen = device("h200").watched()
    TileTimes(seen)
    return Section(f"recorded-{program}", own, _EVENTS, found, inputs_of(seen, seen.asked))
