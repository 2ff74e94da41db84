"""Steps that an H200 was timed at, and the work of the programs that ran them.

``recorded/h200_steps.json`` has them. Those that constants are fitted to are of the persistent step
of ``meshc compile --persistent``. Its products are dealt over the blocks as tasks are. Its
attention is not: as many blocks as have at least four tiles of tokens share those of a key head in
contiguous runs, where a task program has a fixed number of splits that take runs of 32 tokens in
turn. That is changed here in the work of a task program before it is timed. Others are of task
programs as they stand, as they were emitted at first: the warp that brings tiles looked up each
tile's pages once it had found a place for it, which made attention slower.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from pathlib import Path

import meshc
from meshc.cost.tasks.blocks import Ring
from meshc.cost.tasks.steps import StepTime, time_of_work
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import SUMS_BYTES, LoopWork, Meeting, PhaseWork, Stage, TaskWork, work_of
from meshc.devices import Device, Number
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline

CEILING = 4.578e12
"""Bytes per second that reading 2 GiB takes with its launch, to which ratios are given."""
L2_BYTES = 62_914_560 / 2
"""What lies in an H200's L2 at once, half of what it has: what multiprocessors read of the other
half lies in both. What comes is taken to replace any of it alike."""
FLYING = 4
LEAST_TILES = 4
CAPACITY, CAPACITY_OF_BATCHES = 16385, 4112
EMITTED_ASKING_NS = 703
"""From one tile of cached tokens to the next in the task programs that were timed: what 12288 more
tokens took Llama-2-7B, by the tiles of a block."""


@dataclass(frozen=True)
class Recorded:
    """A timed step, in microseconds, of so many requests behind so many cached tokens; ``options``
    of expand-tasks where the program is of tasks."""

    program: str
    model: str
    batch: int
    options: str
    cached: int
    us: float


STEPS = tuple(
    Recorded(**row)
    for row in json.loads((Path(__file__).parent / "recorded/h200_steps.json").read_text())["steps"]
)
FITTED, HELD_OUT = (
    tuple(s for s in STEPS if s.program == "persistent" and s.model == model)
    for model in ("llama-2-7b", "llama-3-8b")
)
EMITTED = tuple(s for s in STEPS if s.program == "tasks")


def tasks_of(
    model: str, capacity: int, rows: int = 16, more: str = "", meet: str = "", **options: object
) -> Module:
    """A model's decode step as a module of the task level for an H200, with so many rows of a
    weight to a task, ``more`` options of expand-tasks and meetings of the kind ``meet``. Without
    one blocks are taken to meet by a counter in front of each phase, which ``meet`` finds after a
    while (``tests/cost/test_task_steps.py`` holds it against that)."""
    passes = f"expand-tasks{{rows={rows}{more and ',' + more}}},place-tasks"
    passes += f",meet{{kind={meet}}}" if meet else ""
    usual = {"phase": "decode", "dtype": "f16", "device": "h200", "mesh": "1x1"}
    made = meshc.compile(model, seq=capacity, compile_to="graph", **{**usual, **options})
    return PassManager(parse_pipeline(passes)).run(made.modules["decode"])


@cache
def work_of_kernel(model: str, cached: int) -> tuple[Stage, ...]:
    """What the tasks of the persistent kernel do for a step."""
    module = _module(model)
    dims = module.dims
    return tuple(_by_kernel(work_of(module, {"pos": cached}), dims, module.the_device(), cached))


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


def kernel_ring(model: str, cached: int, flying: int = FLYING, ahead: int = 0) -> Ring:
    """The ring of the persistent kernel, whose warps have sums of one vector, not of eight."""
    times = TileTimes(_module(model).the_device())
    stages = work_of_kernel(model, cached)
    widest = max(f.held for stage in stages for phase in _phases(stage) for f in phase.families)
    kept = exp(-ahead * times.tile * times.device.cores / L2_BYTES)
    ring = times.ring(widest - 7 * SUMS_BYTES)
    return replace(ring, flying=flying, ahead=ahead, kept=kept)


def _phases(stage: Stage) -> list[PhaseWork]:
    if not isinstance(stage, LoopWork):
        return [stage] if isinstance(stage, PhaseWork) else []
    return [phase for inner in stage.body for phase in _phases(inner)]


def with_numbers(device: Device, numbers: Mapping[str, float | str]) -> Device:
    """``device`` with some of its numbers replaced."""
    changed = {name: Number(value, "assumed", "here") for name, value in numbers.items()}
    return replace(device, numbers={**device.numbers, **changed})


def predicted(
    step: Recorded, device: Device | None = None, flying: int = FLYING, ahead: int = 0
) -> StepTime:
    """What the model expects of a step of the persistent kernel."""
    times = TileTimes(device or _module(step.model).the_device())
    ring = kernel_ring(step.model, step.cached, flying, ahead)
    return time_of_work(work_of_kernel(step.model, step.cached), times, ring)


def predicted_of_tasks(step: Recorded) -> StepTime:
    """What it expects of a step of a task program, as these were timed."""
    capacity = CAPACITY if step.batch == 1 else CAPACITY_OF_BATCHES
    module = tasks_of(step.model, capacity, more=step.options, batch=step.batch)
    device = with_numbers(module.the_device(), {"attention_asking_ns": EMITTED_ASKING_NS})
    return time_of_work(work_of(module, {"pos": step.cached}), TileTimes(device))


def over_ceiling(found: StepTime) -> float:
    """A step's time over that of its bytes at :data:`CEILING`."""
    return found.seconds * CEILING / found.bytes
