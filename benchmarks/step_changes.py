"""Changes of task programs that passes could make, as changes of their work and of the device's
numbers: what the event model expects of each before anybody writes it. None of them is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np

from meshc.cost.tasks.blocks import Run
from meshc.cost.tasks.phase_times import Placement, StepTime, shared_evenly, time_of_work
from meshc.cost.tasks.stages import (
    READ_AT_ONCE,
    FamilyWork,
    LoopWork,
    PhaseWork,
    Piece,
    Stage,
    TaskWork,
)
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices.keys import points
from meshc.driver.reproduction.timed_steps import tasks_of, with_numbers

Change = Callable[["Setting"], "Setting"]


@dataclass(frozen=True)
class Setting:
    """What is timed: stages, the device's times and a placement."""

    stages: tuple[Stage, ...]
    times: TileTimes
    place: Placement = shared_evenly

    def time(self) -> StepTime:
        """Its predicted time."""
        return time_of_work(self.stages, self.times, place=self.place)

    def each(self, change: Callable[[FamilyWork], FamilyWork]) -> Setting:
        """The same with each family changed."""

        def of(stages: Sequence[Stage]) -> tuple[Stage, ...]:
            found: list[Stage] = []
            for stage in stages:
                if isinstance(stage, LoopWork):
                    stage = replace(stage, body=of(stage.body))
                elif isinstance(stage, PhaseWork):
                    stage = replace(stage, families=tuple(map(change, stage.families)))
                found.append(stage)
            return tuple(found)

        return replace(self, stages=of(self.stages))

    def numbers(self, **changed: float | str) -> Setting:
        """The same with other numbers of the device."""
        device = with_numbers(self.times.device, changed)
        return replace(self, times=replace(self.times, device=device))


def setting(
    model: str,
    cached: int,
    batch: int = 1,
    rows: int = 16,
    more: str = "",
    packed: bool = False,
    meet: str = "",
) -> Setting:
    """A model's step as its task program stands, for an H200, with ``rows`` of a weight to a task,
    ``more`` options of expand-tasks and meetings of the kind ``meet``. ``packed``: fragments that a
    task's rows do not fill hold further parts of the width."""
    module = tasks_of(model, cached + 1, batch, rows, more, meet)
    work = work_of(module, {"pos": cached})
    times = TileTimes(module.the_device(), packed=packed)
    return Setting(work, times)


TAGGED = {"signal_ns": 900, "signal_waits": 1.5}
"""Meetings by tags in words of 16 bytes, less what reading takes (``recorded/h200_rates.json``)."""


def tags(now: Setting) -> Setting:
    """Readiness in the data: who needs it reads it until it is there, without a counter. Of the
    four values in a word one is a tag; a record of attention has one tag."""
    return _reading(now, 4 / 3, 1).numbers(**TAGGED)


def halved(now: Setting) -> Setting:
    """What all blocks read of each other is of 16 bits in place of 32."""
    return _reading(now, 1 / 2, 1 / 2)


def tagged_halves(now: Setting) -> Setting:
    """Both: of the eight values in a word two are a tag."""
    return _reading(now, 2 / 3, 1 / 2).numbers(**TAGGED)


def _reading(now: Setting, vectors: float, records: float) -> Setting:
    """The same with other sizes of what blocks read of each other."""

    def change(family: FamilyWork) -> FamilyWork:
        factor = records if _merges(family) else vectors
        read = {
            k: (n if fresh else round(n * factor), fresh) for k, (n, fresh) in family.read.items()
        }
        return replace(family, read=read)

    return now.each(change)


def _merges(family: FamilyWork) -> bool:
    """Whether it reads more than the left sides of its products."""
    size = sum(n for n, fresh in family.read.values() if not fresh)
    return size > 4 * family.vectors * family.width


def columns(now: Setting) -> Setting:
    """Vectors are exchanged as the columns of 16 bits that products take, and copied: norms scale
    the sums behind a product, not the vector in front of it; who gives a vector multiplies it with
    the norm's weights, which are not counted."""

    def change(family: FamilyWork) -> FamilyWork:
        if _merges(family):
            return family
        halves = {k: (n // 2, False) for k, (n, fresh) in family.read.items() if not fresh}
        return replace(family, read=halves, vectors=1, width=READ_AT_ONCE)

    return now.each(change)


def flying(tiles: int) -> Change:
    """So many tiles are on their way at once."""
    return lambda now: now.numbers(bytes_in_flight=tiles * now.times.tile)


def tile_of(kib: int) -> Change:
    """Tiles are of so many KiB, with as many bytes on their way; runs of tokens stay as they are,
    so that a larger tile has one of them and a smaller one a part."""

    def parts(piece: Piece) -> list[Piece]:
        """A run of cached tokens, tile by tile."""
        if piece.kind != "attention":
            return [piece]
        sizes = [min(kib * 1024, piece.bytes - at) for at in range(0, piece.bytes, kib * 1024)]
        return [replace(piece, bytes=size) for size in sizes]

    @cache
    def divided(one: TaskWork) -> TaskWork:
        return replace(one, pieces=tuple(chain.from_iterable(map(parts, one.pieces))))

    def change(now: Setting) -> Setting:
        now = now.each(lambda family: replace(family, tasks=tuple(map(divided, family.tasks))))
        times, factor = now.times, kib * 1024 / now.times.tile
        known = points(str(times.device.value("product_tile_ns")))
        return now.numbers(
            tile_bytes=kib * 1024,
            product_tile_ns=",".join(f"{at}:{round(ns * factor)}" for at, ns in known),
            attention_tile_ns=round(times.device.real("attention_tile_ns") * factor),
            attention_asking_ns=round(times.device.real("attention_asking_ns") * min(factor, 1)),
        )

    return change


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
    carried += [sum(tile.bytes for tile in own) for own in tiles]
    return replace(shared, tiles=tiles)
