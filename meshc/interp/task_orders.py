"""In which order the tasks of a program run: as needs allow, or as blocks come to them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.support.diagnostics import fail
from meshc.support.graphs import shortest_cycle


@dataclass(frozen=True)
class Order:
    """In which order tasks run: that of the text, or, with a ``seed``, a random one that needs
    allow. Tasks of the family ``first`` then run as early as they may, behind what they need alone,
    so that what they forget to need is not there yet. Edges between families in ``without``, each
    (who needs, who gives), are left out, to see what that does.

    With ``blocks`` tasks run as they are placed instead: each block runs its own one by one and
    waits at meetings, needs make nobody wait, and a random block goes on for as long as it can.
    Behind a meeting by tags a block waits in front of each task of the next phase until the words
    that it needs have their tags. Meetings in ``passed``, by their number in the text, are no
    meetings then.
    """

    seed: int | None = None
    first: str = ""
    without: frozenset[tuple[str, str]] = frozenset()
    blocks: bool = False
    passed: frozenset[int] = frozenset()


class Edges:
    """Who gives what each task needs: ``owner`` has for each element of each buffer the task that
    gives it, or -1."""

    def __init__(self, tasks: int, memory: list[NDArray[Any]]) -> None:
        self.owner = [np.full(m.shape, -1, np.int64) for m in memory]
        self.givers: list[set[int]] = [set() for _ in range(tasks)]

    def gives(self, number: int, regions: Iterator[tuple[int, Any]]) -> None:
        """Task ``number`` gives ``regions``."""
        for slot, index in regions:
            self.owner[slot][index] = number

    def needs(self, number: int, regions: Iterator[tuple[int, Any]]) -> None:
        """Task ``number`` needs ``regions``."""
        for slot, index in regions:
            self.givers[number].update(np.unique(self.owner[slot][index]).tolist())
        self.givers[number].discard(-1)

    def leave_out(self, families: list[str], pairs: frozenset[tuple[str, str]]) -> None:
        """Forget edges between ``pairs`` of families."""
        if pairs:
            for number, givers in enumerate(self.givers):
                here = families[number]
                self.givers[number] = {g for g in givers if (here, families[g]) not in pairs}

    def order(self, wanted: Order, families: list[str]) -> list[int]:
        """A random order that the edges allow. Raises ``interp-deadlock``."""
        rng = random.Random(wanted.seed)
        if wanted.first:
            return self._early(rng, wanted.first, families)
        left = [len(g) for g in self.givers]
        readers: list[list[int]] = [[] for _ in self.givers]
        for number, givers in enumerate(self.givers):
            for giver in givers:
                readers[giver].append(number)
        ready = [(rng.random(), n) for n, count in enumerate(left) if not count]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            _, number = heapq.heappop(ready)
            found.append(number)
            for reader in readers[number]:
                left[reader] -= 1
                if not left[reader]:
                    heapq.heappush(ready, (rng.random(), reader))
        if len(found) < len(self.givers):
            self._circle(families)
        return found

    def _early(self, rng: random.Random, first: str, families: list[str]) -> list[int]:
        """Each task of ``first`` behind what it needs and nothing else, then all others."""
        names = [*range(len(self.givers))]
        rng.shuffle(names)
        names.sort(key=lambda n: families[n] != first)
        found: list[int] = []
        state: dict[int, bool] = {}  # False while what a task needs is looked for
        for name in names:
            stack = [name]
            while stack:
                at = stack[-1]
                if at not in state:
                    state[at] = False
                    waiting = [g for g in self.givers[at] if g not in state]
                    if any(state.get(g) is False for g in self.givers[at]):
                        self._circle(families)
                    stack += waiting
                else:
                    stack.pop()
                    if not state[at]:
                        state[at] = True
                        found.append(at)
        return found

    def _circle(self, families: list[str]) -> NoReturn:
        """Fail with the shortest circle of tasks, each of which needs the next."""
        found = shortest_cycle(
            (n, giver) for n, givers in enumerate(self.givers) for giver in givers
        )
        names = " -> ".join(f"@{families[number]}" for number in (*found, found[0]))
        fail("interp-deadlock", f"tasks need each other in a circle: {names}")


class Blocks:
    """Blocks that run the tasks of each phase that are theirs, and meet, those of all ``ranks`` one
    behind the other; ``tagged`` says of a task, by its number, whether what it needs has its tags,
    ``clusters`` which cluster runs it. Raises ``interp-schedule`` where tasks are not placed, and
    ``interp-deadlock`` where the tags of a task never come."""

    def __init__(
        self, module: Module, order: Order, tagged: Callable[[int], bool], ranks: int = 1
    ) -> None:
        self.rng = random.Random(order.seed)
        self.tagged = tagged
        self.awaiting: set[int] = set()
        meets = [op for op in module.walk() if isinstance(op, task.Meet)]
        passed = {meets[number] for number in order.passed}
        self.queues: list[list[int | task.Meet]] = []
        self.cluster = 1
        self.clusters: dict[int, int] = {}
        numbers = count()
        phases = [op for op in module.walk() if isinstance(op, task.Phase)]
        self.of_rank = phases[0].blocks if phases else 0
        for op in phases:
            if not op.blocks or op.blocks != self.of_rank:
                fail("interp-schedule", f"tasks of phase '{op.name}' are not placed as others are")
        for _ in range(ranks):
            own: list[list[int | task.Meet]] = [[] for _ in range(self.of_rank)]
            self._fill(module, own, numbers, passed)
            self.queues += own

    def _fill(
        self,
        module: Module,
        queues: list[list[int | task.Meet]],
        numbers: Iterator[int],
        passed: set[task.Meet],
    ) -> None:
        """What the blocks of a rank do, in ``queues``."""
        awaiting, before = False, len(self.queues)
        for op, families in _events(module, module.program.body, {}):
            if isinstance(op, task.Meet):
                awaiting = op.kind == task.TAGS and op not in passed
                for queue in queues if op.kind != task.TAGS and op not in passed else ():
                    queue.append(op)
                continue
            self.cluster = op.cluster or 1
            for own in _lots(op, families, numbers):
                blocks = len(own.blocks)
                if awaiting:
                    self.awaiting.update(own.tasks)
                for place, block in enumerate(own.blocks):
                    ends = (len(own.tasks) * b // blocks for b in (place, place + 1))
                    mine = own.tasks[slice(*ends)]
                    queues[block] += mine
                    self.clusters |= dict.fromkeys(mine, (before + block) // self.cluster)
            awaiting = False

    def order(self) -> Iterator[int]:
        """Tasks as blocks come to them; a meeting is passed when all blocks that it is for have
        come to it."""
        self.at = [0] * len(self.queues)
        self.waits = [False] * len(self.queues)
        kinds = task.COUNTER, task.CLUSTER, task.RANKS, task.KERNEL
        self.arrived = [dict.fromkeys(kinds, 0) for _ in self.queues]
        while ready := self._ready():
            current = self.rng.choice(ready)
            queue = self.queues[current]
            while self.at[current] < len(queue) and self._may_run(queue[self.at[current]]):
                number = queue[self.at[current]]
                assert isinstance(number, int)
                yield number
                self.at[current] += 1
        if any(at < len(queue) for at, queue in zip(self.at, self.queues, strict=True)):
            fail("interp-deadlock", "tasks wait for words whose tags never come")

    def _ready(self) -> list[int]:
        """The blocks that have a task to run, behind all meetings that are over."""
        changed = True
        while changed:
            changed = False
            for block, queue in enumerate(self.queues):
                meeting = queue[self.at[block]] if self.at[block] < len(queue) else 0
                if isinstance(meeting, int):
                    continue
                own = self.arrived[block]
                if not self.waits[block]:
                    self.waits[block] = changed = True
                    own[meeting.kind] += 1
                others = self.arrived
                if meeting.kind != task.RANKS:
                    size = self.cluster if meeting.kind == task.CLUSTER else self.of_rank
                    first = block // size * size
                    others = others[first : first + size]
                if own[meeting.kind] <= min(one[meeting.kind] for one in others):
                    self.waits[block], changed = False, True
                    self.at[block] += 1
        left = enumerate(zip(self.at, self.queues, strict=True))
        return [b for b, (at, queue) in left if at < len(queue) and self._may_run(queue[at])]

    def _may_run(self, number: int | task.Meet) -> bool:
        """Whether a task, if it is one, has what it waits for."""
        return isinstance(number, int) and (number not in self.awaiting or self.tagged(number))


@dataclass(frozen=True)
class _Lot:
    """Tasks by number, in the order in which ``blocks`` share them."""

    tasks: list[int]
    blocks: range


def _lots(phase: task.Phase, families: list[task.Family], numbers: Iterator[int]) -> Iterator[_Lot]:
    """The tasks of a phase, numbered as they come: all of them, or group by group."""
    every = [
        np.array([next(numbers) for _ in range(int(np.prod(f.sizes)))]).reshape(f.sizes)
        for f in families
    ]
    if not phase.groups:
        yield _Lot([int(n) for one in every for n in one.reshape(-1)], range(phase.blocks))
        return
    clusters = phase.blocks // phase.cluster
    for cluster in range(clusters):
        of_cluster = range(cluster * phase.cluster, (cluster + 1) * phase.cluster)
        ends = (phase.groups * c // clusters for c in (cluster, cluster + 1))
        for group in range(*ends):
            tasks = []
            for family, one in zip(families, every, strict=True):
                parts = np.split(one, phase.groups, axis=family.dims.index(family.grouped))
                tasks += parts[group].reshape(-1).tolist()
            yield _Lot(tasks, of_cluster)


def _events(
    module: Module, block: Block, env: dict[str, int]
) -> Iterator[tuple[task.Phase | task.Meet, list[task.Family]]]:
    """Phases, with their families, and meetings, as they come."""
    for op in block.ops:
        if op.when is not None and not op.when.evaluate(env):
            continue
        if isinstance(op, tile.For):
            for value in range(int(op.count.evaluate(env))):
                yield from _events(module, op.regions[0], {**env, op.var: value})
        elif isinstance(op, task.Meet):
            yield op, []
        elif isinstance(op, task.Phase):
            yield op, [f for f in op.regions[0].ops if isinstance(f, task.Family)]
