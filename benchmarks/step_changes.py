"""Changes of task programs that passes could make, as changes of their work: what the event model
expects of each before anybody writes it. None of them is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from recorded_steps import tasks_of, with_numbers

from meshc.cost.tasks.blocks import Run
from meshc.cost.tasks.steps import Placement, StepTime, shared_evenly, time_of_work
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import (
    FamilyWork,
    LoopWork,
    Meeting,
    PhaseWork,
    Stage,
    TaskWork,
    work_of,
)

Change = Callable[["Setting"], "Setting"]
MERGING, SUMMING = "merge", "sum"


@dataclass(frozen=True)
class Setting:
    """What is timed: stages, the device's times and a placement; ``requests`` of the batch,
    ``dims`` of the model."""

    stages: tuple[Stage, ...]
    times: TileTimes
    requests: int
    dims: dict[str, int]
    place: Placement = shared_evenly

    def time(self) -> StepTime:
        """Its predicted time."""
        return time_of_work(self.stages, self.times, place=self.place)

    def each(self, change: Callable[[PhaseWork], Sequence[PhaseWork]]) -> Setting:
        """The same with each phase changed."""

        def of(stages: Sequence[Stage]) -> tuple[Stage, ...]:
            found: list[Stage] = []
            for stage in stages:
                if isinstance(stage, LoopWork):
                    found.append(replace(stage, body=of(stage.body)))
                elif isinstance(stage, PhaseWork):
                    for number, phase in enumerate(change(stage)):
                        found += [Meeting(), phase] if number else [phase]
                else:
                    found.append(stage)
            return tuple(found)

        return replace(self, stages=of(self.stages))

    def numbers(self, **changed: float | str) -> Setting:
        """The same with other numbers of the device."""
        device = with_numbers(self.times.device, changed)
        return replace(self, times=replace(self.times, device=device))


def setting(
    model: str, cached: int, batch: int = 1, rows: int = 16, more: str = "", **numbers: float
) -> Setting:
    """A model's step as its task program stands, for an H200 with some ``numbers``, made with
    ``more`` options of expand-tasks."""
    module = tasks_of(model, cached + 1, rows, more, batch=batch)
    work = work_of(module, {"pos": cached})
    times = TileTimes(with_numbers(module.the_device(), numbers), packed=rows < 16)
    return Setting(work, times, batch, dict(module.dims))


# -- meetings ------------------------------------------------------------------------------------
def tags(now: Setting) -> Setting:
    """Readiness in the data: who needs it reads it until it is there, without a counter."""
    return now.numbers(signal_ns=0)


def readied_in(ns: float) -> Change:
    """Columns are made of what was read in a shorter time."""
    return lambda now: now.numbers(ready_ns=ns)


def halved(now: Setting) -> Setting:
    """What all blocks read of each other is of 16 bits in place of 32."""

    def change(phase: PhaseWork) -> list[PhaseWork]:
        families = []
        for family in phase.families:
            read = {k: (n if fresh else n // 2, fresh) for k, (n, fresh) in family.read.items()}
            families.append(replace(family, read=read))
        return [replace(phase, families=tuple(families))]

    return now.each(change)


# -- attention's records -------------------------------------------------------------------------
def merged(now: Setting) -> Setting:
    """Records of attention are merged by tasks of a phase of their own, one for each request and
    key head and a sixteenth of its lanes; the output projection reads what they give."""
    width = now.requests * now.dims["H"] * now.dims["D"] * 4
    tasks = now.requests * now.dims["G"] * 16

    def change(phase: PhaseWork) -> list[PhaseWork]:
        if phase.name != "o":
            return [phase]
        (family,) = phase.families
        records = sum(n for n, _ in family.read.values())
        work = (TaskWork((), -(-records // tasks)),) * tasks
        merge = PhaseWork(MERGING, (FamilyWork(MERGING, work, {}, 0),))
        return [merge, replace(phase, families=(replace(family, read={"o": (width, False)}),))]

    return now.each(change)


# -- products ------------------------------------------------------------------------------------
def parted(parts: int, names: tuple[str, ...] = ("y",)) -> Change:
    """Products are divided by width as well: tasks of one part after those of another, whose sums
    are added, with the residual, by tasks of a phase of their own."""

    def change_of(now: Setting) -> Change:
        rows = now.requests * now.dims["E"] * 4

        def change(phase: PhaseWork) -> list[PhaseWork]:
            if phase.name not in names or parts == 1:
                return [phase]
            (family,) = phase.families
            found = []
            for part in range(parts):
                read = {f"{k} {part}": (n // parts, fresh) for k, (n, fresh) in family.read.items()}
                tasks = tuple(
                    TaskWork(tuple(replace(p, bytes=p.bytes // parts) for p in t.pieces))
                    for t in family.tasks
                )
                found.append(FamilyWork(f"{family.name}.{part}", tasks, read, family.held // parts))
            count = len(family.tasks)
            work = (TaskWork((), (parts + 1) * rows // count),) * count
            summing = PhaseWork(f"{SUMMING} {phase.name}", (FamilyWork(SUMMING, work, {}, 0),))
            return [replace(phase, families=tuple(found)), summing]

        return change

    return lambda now: now.each(change_of(now))


def by_bytes(now: Setting) -> Setting:
    """Blocks have contiguous tasks, equally many but for one; the rests go to those blocks that
    have the fewest bytes of what went before."""
    carried: np.ndarray = np.zeros(now.times.device.cores)
    known: dict[int, Run] = {}

    def place(phase: PhaseWork, times: TileTimes, blocks: int) -> Run:
        if id(phase) not in known:
            known[id(phase)] = _rests(phase, times, carried)
        return known[id(phase)]

    return replace(now, place=place)


def _rests(phase: PhaseWork, times: TileTimes, carried: np.ndarray) -> Run:
    tasks = [t for family in phase.families for t in family.tasks]
    blocks = len(carried)
    counts = np.full(blocks, len(tasks) // blocks)
    order = np.argsort(carried, kind="stable")
    counts[order[: len(tasks) - counts.sum()]] += 1
    ends = np.cumsum(counts)
    shared = shared_evenly(phase, times, blocks)
    tiles = [
        [x for t in tasks[a:b] for x in times.tiles(t)]
        for a, b in zip(ends - counts, ends, strict=True)
    ]
    carried += [sum(size for size, _ in own) for own in tiles]
    return replace(shared, tiles=tiles)
