"""The predicted time of a step whose program is of the task level, by phase and by what it is
spent on.

Each block runs an even, contiguous share of the tasks of each phase, or of those of each group that
its cluster has. Phases between which blocks do
not meet are taken as one. Loops over layers whose rounds do the same are followed for
:data:`ROUNDS` rounds; every further one takes as long as the last of these, by which time rounds
take equally long. Of very many tiles those of some of the blocks are followed, with their part of
memory.

What is given to scratch and stored in caches is not counted: some thousandths of what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from math import inf
from operator import itemgetter
from statistics import fmean
from typing import Literal

from meshc.analysis.cuda.blocks import WARPS
from meshc.analysis.tasks.shares import share
from meshc.cost.tasks.blocks import Memory, Ring, Run, Spent, Stay, Tile, Tiles, simulate
from meshc.cost.tasks.stages import FamilyWork, LoopWork, Meeting, PhaseWork, Stage, TaskWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import Scalars, work_of
from meshc.cost.terms import Cost
from meshc.devices import Kind
from meshc.ir.module import Module
from meshc.ir.ops import task

ROUNDS = 3
"""Rounds of a loop that are followed event by event."""

MOST_FOLLOWED = 200_000
"""Tiles that are followed event by event. Of more every second, fourth or eighth block is followed:
of steps with 150,000 to 290,000 tiles on an H200 the time moves by at most 0.02 %, 0.07 % and
0.15 %."""
MOST_SKIPPED = 8
"""At least one of so many blocks is followed."""
UNEVEN = 0.005
"""By what part blocks that are followed may have fewer or more tiles than all: where experts are
chosen that is much, and without this a step of gpt-oss-20b was predicted 4 % too short."""

Limit = Literal["memory", "computing", "meeting", "idle"]


Placement = Callable[[PhaseWork, TileTimes, int], Run]
"""What each block does in a phase, of so many blocks."""


@dataclass(frozen=True)
class PhaseTime:
    """A phase, in all rounds of the loops around it: seconds by what blocks spend them on (see
    :class:`~meshc.cost.tasks.blocks.Spent`) and bytes that come from memory."""

    name: str
    times: int
    bytes: int
    spent: Spent


@dataclass(frozen=True)
class Followed:
    """What was followed event by event: the names of its phases, those of the first rounds of a
    loop one behind the other, and what every ``apart``-th block did in each."""

    names: tuple[str, ...]
    stays: tuple[Stay, ...]
    apart: int


@dataclass(frozen=True)
class StepTime:
    """A step: its phases in order, ``blocks`` with a ``ring``, and the bytes per second (``rate``)
    that memory gives at best. ``crowded`` are families whose columns leave no room for a ring: its
    blocks read them again for each task, in parts. ``inputs`` are the device's numbers that it
    rests on, by kind. ``followed`` is what its blocks did."""

    phases: tuple[PhaseTime, ...]
    blocks: int
    ring: Ring
    rate: float
    crowded: tuple[str, ...]
    inputs: Mapping[Kind, tuple[str, ...]]
    followed: Followed

    @property
    def spent(self) -> Spent:
        """All phases together."""
        found = Spent()
        for phase in self.phases:
            _add(found, phase.spent, 1)
        return found

    @property
    def cost(self) -> Cost:
        """Seconds: ``compute`` is arithmetic, ``transfer`` waiting for tiles, ``stages`` the round
        trips of meetings and ``waits`` for the last block of a phase."""
        spent = self.spent
        return Cost(
            compute=spent.computing,
            transfer=spent.memory,
            stages=spent.meeting,
            waits=spent.idle,
        )

    @property
    def seconds(self) -> float:
        """Predicted time."""
        return self.cost.total

    @property
    def bytes(self) -> int:
        """What comes from memory."""
        return sum(phase.bytes for phase in self.phases)

    @property
    def ceiling(self) -> float:
        """Seconds that these bytes take at least."""
        return self.bytes / self.rate

    @property
    def ratio(self) -> float:
        """Predicted time over that of the bytes; infinite without any."""
        return self.seconds / self.ceiling if self.bytes else inf

    @property
    def limit(self) -> Limit:
        """What blocks spend most of their time on."""
        spent = self.spent
        parts: dict[Limit, float] = {
            "memory": spent.memory,
            "computing": spent.computing,
            "meeting": spent.meeting,
            "idle": spent.idle,
        }
        return max(parts, key=lambda name: parts[name])


def step_time(module: Module, scalars: Scalars, times: TileTimes | None = None) -> StepTime:
    """Predict a step of a module of the task level on its device. Raises ``device-number`` for a
    device that lacks a number, and what :func:`~meshc.cost.tasks.work.work_of` raises."""
    times = times or TileTimes(module.the_device())
    return time_of_work(work_of(module, scalars), times)


def time_of_work(
    stages: Sequence[Stage],
    times: TileTimes,
    ring: Ring | None = None,
    place: Placement | None = None,
) -> StepTime:
    """Predict what ``stages`` take; with a ``ring`` and a placement of one's own."""
    device = times.device.watched()
    times = replace(times, device=device)
    place = place or shared_evenly
    groups = _groups(stages)
    phases = {id(phase): phase for group, *_ in groups for phase in group}
    blocks = max((phase.blocks for phase in phases.values()), default=0) or device.cores
    families = [family for phase in phases.values() for family in phase.families]
    held = max((f.held for f in families if times.fits(f.held)), default=0)
    held += _choosing_bytes(max((f.candidates for f in families), default=0))
    pieces = {piece for f in families for one in f.tasks for piece in one.pieces}
    ring = ring or times.ring(held, max(map(times.place, pieces), default=0))
    placed = {key: place(phase, times, blocks) for key, phase in phases.items()}
    runs = [
        met(joined([placed[id(phase)] for phase in group]), group, meeting, times)
        for group, _, meeting in groups
    ]
    kinds = any(run.tags for run in runs), any(run.kernel for run in runs)
    memory = times.memory(ring.flying, *kinds)
    kept, part = _thinned(runs, memory)
    stays: list[Stay] = []
    spent = simulate(kept, part, ring, stays)
    found: dict[tuple[int, ...], PhaseTime] = {}
    names = tuple(", ".join(phase.name for phase in group) for group, *_ in groups)
    for (group, weight, _), name, one in zip(groups, names, spent, strict=True):
        key = tuple(map(id, group))
        known = found.setdefault(key, PhaseTime(name, 0, 0, Spent()))
        _add(known.spent, one, weight)
        size = known.bytes + weight * sum(phase.bytes for phase in group)
        found[key] = PhaseTime(name, known.times + weight, size, known.spent)
    crowded = dict.fromkeys(f.name for f in families if not times.fits(f.held))
    apart = -(-blocks // len(kept[0].tiles)) if kept else 1
    return StepTime(
        tuple(found.values()),
        blocks,
        ring,
        times.rate,
        tuple(crowded),
        device.inputs(),
        Followed(names, tuple(stays), apart),
    )


def _choosing_bytes(candidates: int) -> int:
    """Bytes that a block keeps of choices among so many experts: two lists of those that are
    chosen, with what each warp has found, and the scores of a token and what is made of them."""
    if not candidates:
        return 0
    return 8 * (1 + candidates + WARPS) + 16 * candidates


Group = tuple[tuple[PhaseWork, ...], int, Meeting]
"""Phases between two meetings, how many rounds they stand for, and the first meeting."""


def _groups(stages: Sequence[Stage]) -> list[Group]:
    """The phases that are followed, in order. The last round that is stands for those that are not
    or, where no meeting keeps its phases from those behind the loop, the one in the middle; where
    none keeps rounds apart all of them are followed."""
    for most, many in ((ROUNDS, ROUNDS - 1), (ROUNDS, ROUNDS // 2), (None, 0)):
        found: list[tuple[list[PhaseWork], set[int], Meeting]] = [([], set(), Meeting(""))]
        for stage, weight in _followed(stages, most, many):
            if isinstance(stage, Meeting):
                found.append(([], set(), stage))
            else:
                found[-1][0].append(stage)
                found[-1][1].add(weight)
        if all(len(weights) <= 1 for _, weights, _ in found):
            break
    return [(tuple(phases), weights.pop(), first) for phases, weights, first in found if phases]


def _followed(
    stages: Sequence[Stage], most: int | None, many: int, weight: int = 1
) -> Iterator[tuple[PhaseWork | Meeting, int]]:
    """What is followed in order, at most so many rounds of a loop, and how many rounds each phase
    stands for; the round ``many`` stands for those that are not followed."""
    for stage in stages:
        if not isinstance(stage, LoopWork):
            yield stage, weight
            continue
        count = stage.count if most is None else min(stage.count, most)
        for number in range(count):
            rest = stage.count - count if number == many else 0
            yield from _followed(stage.body, most, many, weight * (1 + rest))


def _thinned(runs: Sequence[Run], memory: Memory) -> tuple[Sequence[Run], Memory]:
    """Blocks and memory that take as long, with fewer tiles to follow where there are very many.
    Blocks of clusters wait for each other, so all are followed, and so are all where some have
    other shares than those that would be."""
    count = sum(len(tiles) for run in runs for tiles in run.tiles)
    step = 1
    while count > step * MOST_FOLLOWED and step < MOST_SKIPPED:
        step *= 2
    while step > 1 and _unevenness(runs, step) > UNEVEN:
        step //= 2
    if step == 1 or any(run.cluster for run in runs):
        return runs, memory
    kept = [replace(run, tiles=run.tiles[::step], read=run.read[::step]) for run in runs]
    part = len(kept[0].read) / len(runs[0].read)
    return kept, replace(memory, rate=memory.rate * part)


def _unevenness(runs: Sequence[Run], step: int) -> float:
    """By what part the tiles of one block of ``step`` are others than those of all blocks, in the
    mean and at the most of each phase, all phases together."""
    every = [[len(tiles) for tiles in run.tiles] for run in runs]
    kept = [one[::step] for one in every]
    mean = sum(map(fmean, kept)) / sum(map(fmean, every))
    most = sum(map(max, kept)) / sum(map(max, every))
    return max(abs(1 - mean), abs(1 - most))


def shared_evenly(phase: PhaseWork, times: TileTimes, blocks: int) -> Run:
    """What each of ``blocks`` does in a phase of which those that it is placed on, or all, have an
    even share of the tasks."""
    dealt = _dealt(phase, phase.blocks or blocks)
    tiles_of = _TilesOf(times)
    waited = {id(f): (times.fits(f.held), f.waited) for f in phase.families}
    tiles: list[Tiles] = []
    read: list[float] = []
    first: list[float] = []
    choosing = 0.0
    for block in range(blocks):
        mine = dealt[block] if block < len(dealt) else []
        alike: dict[str, int] = {}
        size = 0
        for family, works in mine:
            size += sum(work.own for work in works if not work.multiplies)
            choosing = max(choosing, len(works) * times.choosing(family.candidates))
            fits, read_alike = waited[id(family)]
            if fits:
                alike |= read_alike
            else:
                size += len(works) * sum(read_alike.values())
        tiles.append(tiles_of(mine))
        read.append(size + sum(alike.values()))
        first.append(times.first_piece(sum(mine[0][0].copied.values())) if mine else 0.0)
    ready = times.ready(max(read), any(tiles)) + choosing
    at_once: float = min((family.at_once for family in phase.families), default=1)
    if any(first):  # which no thread asks for
        read, at_once = [own + piece for own, piece in zip(read, first, strict=True)], inf
    late = any(family.beside_vectors for family in phase.families)
    before = times.first(any(tiles))
    return Run(tiles, read, ready, at_once, chosen=phase.chosen, late=late, first=before)


class _TilesOf:
    """The tiles of tasks one behind the other: the same list for the same tasks. Those of the first
    one that has a left side which is copied wait for it."""

    def __init__(self, times: TileTimes) -> None:
        self.times = times
        self.of_task: dict[int, Tiles] = {}
        self.of_tasks: dict[tuple[object, ...], Tiles] = {}

    def __call__(self, mine: Share) -> Tiles:
        key = tuple((*family.copied, *map(id, works)) for family, works in mine)
        if key not in self.of_tasks:
            self.of_tasks[key] = [*self.one_behind_the_other(mine)]
        return self.of_tasks[key]

    def one_behind_the_other(self, mine: Share) -> Iterator[Tile]:
        """The same, not kept."""
        there: Mapping[str, int] = {}
        for place, (family, works) in enumerate(mine):
            for work in works:
                if id(work) not in self.of_task:
                    self.of_task[id(work)] = self.times.tiles(work)
                tiles = self.of_task[id(work)]
                if family.copied.keys() - there.keys():
                    there = family.copied
                    tiles = self.times.copied(tiles, sum(there.values()), asked=place > 0)
                yield from tiles


Share = Sequence[tuple[FamilyWork, Sequence[TaskWork]]]
"""Tasks in order, those of each family together."""


def _dealt(phase: PhaseWork, blocks: int) -> list[Share]:
    """The tasks of each of ``blocks``."""
    if not phase.groups:
        tasks = [(family, family.tasks) for family in phase.families]
        return [_share(tasks, block, blocks) for block in range(blocks)]
    groups: list[list[tuple[FamilyWork, list[TaskWork]]]] = [[] for _ in range(phase.groups)]
    for family in phase.families:
        for group, pairs in groupby(zip(family.tasks, family.groups, strict=True), itemgetter(1)):
            groups[group].append((family, [work for work, _ in pairs]))
    size = phase.cluster
    return [
        [
            part
            for group in share(phase.groups, block // size, blocks // size)
            for part in _share(groups[group], block % size, size)
        ]
        for block in range(blocks)
    ]


def _share(tasks: Share, block: int, blocks: int) -> Share:
    """Those of ``tasks`` that one of ``blocks`` has an even share of."""
    mine = share(sum(len(works) for _, works in tasks), block, blocks)
    found = []
    first = 0
    for family, works in tasks:
        some = works[max(mine.start - first, 0) : max(mine.stop - first, 0)]
        if some:
            found.append((family, some))
        first += len(works)
    return found


def met(run: Run, phases: Sequence[PhaseWork], meeting: Meeting, times: TileTimes) -> Run:
    """``run`` of ``phases`` behind this meeting."""
    if meeting.kind == task.RANKS:
        return replace(run, linked=times.linked(meeting.linked))
    if meeting.kind != task.CLUSTER:
        linked = times.linked(meeting.linked) if meeting.linked else 0.0
        kernel = meeting.kind == task.KERNEL
        return replace(run, tags=meeting.kind == task.TAGS, kernel=kernel, linked=linked)
    cluster = phases[0].cluster
    return replace(run, cluster=cluster, told=times.told(cluster, max(run.read)))


def joined(runs: Sequence[Run]) -> Run:
    """Phases between which blocks do not meet, as one: what they need is read at its beginning."""
    if len(runs) == 1:
        return runs[0]
    tiles = [
        [tile for own in each for tile in own]
        for each in zip(*(r.tiles for r in runs), strict=True)
    ]
    read = [sum(each) for each in zip(*(r.read for r in runs), strict=True)]
    at_once = min(run.at_once for run in runs)
    gates = {"chosen": any(run.chosen for run in runs), "late": any(run.late for run in runs)}
    ready, first = (sum(getattr(run, name) for run in runs) for name in ("ready", "first"))
    return Run(tiles, read, ready, at_once, first=first, **gates)


def _add(into: Spent, other: Spent, times: int) -> None:
    for part in fields(Spent):
        value = getattr(into, part.name) + times * getattr(other, part.name)
        setattr(into, part.name, value)
