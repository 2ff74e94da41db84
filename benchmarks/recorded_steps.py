"""Steps that an H200 was timed at, and the work of the kernel that ran them.

The kernel is the persistent step of ``meshc compile --persistent``. Its products are dealt over
the blocks as tasks are. Its attention is not: as many blocks as have at least four tiles of tokens
share those of a key head in contiguous runs, where a task program has a fixed number of splits that
take runs of 32 tokens in turn; it attends grouped query heads on CUDA cores; and it has four tiles
on their way at once. All of that is changed here in the work of a task program before it is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import meshc
from meshc.cost.tasks.blocks import Ring
from meshc.cost.tasks.steps import StepTime, time_of_work
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import LoopWork, Meeting, PhaseWork, Stage, TaskWork, work_of
from meshc.devices import Device, Number
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline

FLYING = 4
LEAST_TILES = 4
CAPACITY = 16385


@dataclass(frozen=True)
class Recorded:
    """A timed step, in microseconds, behind so many cached tokens (docs/performance.md)."""

    model: str
    cached: int
    us: float


FITTED = (
    Recorded("llama-2-7b", 1024, 3395),
    Recorded("llama-2-7b", 4096, 3736),
    Recorded("llama-2-7b", 16384, 5169),
)
HELD_OUT = (
    Recorded("llama-3-8b", 1024, 3863),
    Recorded("llama-3-8b", 4096, 4011),
    Recorded("llama-3-8b", 16384, 4533),
)


def tasks_of(
    model: str, capacity: int, rows: int = 16, more: str = "", **options: object
) -> Module:
    """A model's decode step as a module of the task level for an H200, with so many rows of a
    weight to a task, and ``more`` options of expand-tasks. Blocks are taken to meet in front of
    each phase, which ``meet`` finds after a while (``tests/cost/test_task_steps.py`` holds it
    against that)."""
    passes = f"expand-tasks{{rows={rows}{more and ',' + more}}},place-tasks"
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
    """The ring of the persistent kernel."""
    times = TileTimes(_module(model).the_device())
    stages = work_of_kernel(model, cached)
    widest = max(f.held for stage in stages for phase in _phases(stage) for f in phase.families)
    return replace(times.ring(widest), flying=flying, ahead=ahead)


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
    """What the model expects of a step that was timed."""
    times = TileTimes(device or _module(step.model).the_device(), grouped_on_cores=True)
    ring = kernel_ring(step.model, step.cached, flying, ahead)
    return time_of_work(work_of_kernel(step.model, step.cached), times, ring)
