"""Runs modules of the task level task by task, in any order that their needs allow.

Which task gives what another needs is found by walking every task over the buffers, element by
element, without a proof: so a need that no edge covers reads NaN in some order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.devices import WAFER
from meshc.interp.fifos import Fabric
from meshc.interp.port_memory import Machine, Rounds
from meshc.interp.resolve import Memo, Names
from meshc.interp.rounding import coded_rows, storage
from meshc.interp.steps import Body, Compiler, Core, LoopStep, Makers, Step
from meshc.interp.task_orders import Blocks, Edges, Order
from meshc.interp.windows import Place, Window
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Axis, Mesh
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType
from meshc.ir.views import Range
from meshc.support.diagnostics import fail

MAX_TASKS = 200_000

ONE_MEMORY = Mesh((Axis(WAFER.down, 1), Axis(WAFER.across, 1)))
"""All tasks share the memory of their GPU."""


@dataclass(eq=False)
class Task:
    """One point of a family: its names with their values, and the scalars of which it has one for
    each request."""

    family: task.Family
    env: dict[str, int]
    rounds: Rounds

    def __str__(self) -> str:
        at = ", ".join(f"{n}={self.env[n]}" for n in self.family.dims)
        return f"@{self.family.name} ({at})"


class TaskMachine(Machine):
    """The memory of a GPU on which the tasks of one module run.

    What a run gives is unset when it begins, states too: who reads it too early sees NaN.
    """

    def __init__(self, module: Module, order: Order | None = None) -> None:
        super().__init__(module, ONE_MEMORY)
        self.order = order or Order()
        families = [op for op in module.walk() if isinstance(op, task.Family)]
        self._slots |= _slots_of_values(families, len(self._slots))
        self.folds = {
            self._slots[b.value]: Fold(b.kept, b.cluster if self.order.blocks else None)
            for b in module.buffers
        }
        tagged = (b for b in module.buffers if b.tags is not None)
        self._tags = {self._slots[b.value]: Tags.of(b) for b in tagged}
        self._runs = 0
        self._bodies = {f: self._compiled(f) for f in families}
        if self.order.first and self.order.first not in {f.name for f in families}:
            fail("interp-schedule", f"there is no family '{self.order.first}' to run first")

    def _compiled(self, family: task.Family) -> Body:
        """The body of ``family``, in whose names those of loops around its phase are known."""
        scalars = self.module.scalars.keys() - self._rounds.keys()
        known = frozenset(
            {*scalars, *family.dims, *family.each, *_loops_around(self.module, family)}
        )
        coded = {self._slots[b.value] for b in self.module.buffers if b.coded is not None}
        compiler = TaskCompiler(self._slots, self.folds, self._tags, coded)
        return compiler.body(family.regions[0], Names(known, {}))

    def _execute(self, scalars: Mapping[str, int], rounds: Rounds) -> None:
        if self.module.ranks is not None:
            fail(
                "interp-ranks",
                f"the program of one rank of {self.module.ranks.count} is run with those of others",
                help="meshc.interp.task_ranks runs all of them",
            )
        run_together([self], [scalars], rounds)

    def share_with(self, other: TaskMachine) -> None:
        """Have one memory with ``other`` of what ranks give each other."""
        for slot, buffer in enumerate(self.module.buffers):
            if buffer.ranks is not None:
                self._memory[slot] = other._memory[slot]
                if slot in self._tags:
                    self._tags[slot].words = other._tags[slot].words

    def begun(self) -> list[NDArray[Any]]:
        """The memory of the GPU when a run begins."""
        for tags in self._tags.values():
            tags.run = self._runs
        self._runs += 1
        return [memory[0] for memory in self._memory]

    def tagged(self, one: Task, memory: list[NDArray[Any]]) -> bool:
        """Whether the words that a task needs have their tags."""
        core = self._core(one, memory)
        return all(
            self._tags[region.slot].there(region.whole.place(core.env))
            for region in _regions_of(self._bodies[one.family], core, task.Need)
            if region.slot in self._tags
        )

    def perform(self, one: Task, memory: list[NDArray[Any]]) -> None:
        """Run a task."""
        own = [_unset(value.type) for value in [*self._slots][len(memory) :]]
        for _ in self._core(one, [*memory, *own]).run(self._bodies[one.family]):
            pass

    def tasks(self, scalars: Mapping[str, int], rounds: Rounds) -> list[Task]:
        """All tasks of a run, in the order of the text."""
        return [*_tasks(self.module, self.module.program.body, dict(scalars), rounds)]

    def _core(self, one: Task, memory: list[NDArray[Any]]) -> Core:
        nowhere = Fabric({}, "early", lambda posted: None)
        return Core(0, str(one), dict(one.env), one.rounds, memory, nowhere)

    def walk(
        self, one: Task, shared: list[NDArray[Any]], kind: type[task.Access]
    ) -> Iterator[tuple[int, tuple[slice | int, ...]]]:
        """The regions of ``kind`` that a task reads or writes."""
        yield from _regions(self._bodies[one.family], self._core(one, shared), kind)


def run_together(
    machines: list[TaskMachine], scalars: list[Mapping[str, int]], rounds: Rounds
) -> None:
    """A run of the program of all ranks, each on a machine with scalars of its own: memory that
    ranks share is one array. Tasks of all ranks run in one order."""
    module, order = machines[0].module, machines[0].order
    each = [m.tasks(own, rounds) for m, own in zip(machines, scalars, strict=True)]
    tasks = [(rank, one) for rank, own in enumerate(each) for one in own]
    if len(tasks) > MAX_TASKS:
        fail("interp-limit", f"the program has {len(tasks)} tasks; at most {MAX_TASKS} run")
    memory = [m.begun() for m in machines]
    slots = len(memory[0])
    joint = [b.ranks is not None for b in module.buffers]
    found = Edges(len(tasks), [array for own in memory for array in own])

    def walked(number: int, kind: type[task.Access]) -> Iterator[tuple[int, Any]]:
        rank, one = tasks[number]
        for slot, index in machines[rank].walk(one, memory[rank], kind):
            yield slot if joint[slot] else rank * slots + slot, index

    for number in range(len(tasks)):
        found.gives(number, walked(number, task.Give))
    for array, owner in zip([a for own in memory for a in own], found.owner, strict=True):
        if array.dtype == np.float32:
            array[owner >= 0] = np.nan
    names = [one.family.name for _, one in tasks]
    own_count = len(each[0])
    # In the order of the text, a task of one rank and then the same one of the next.
    numbers: Iterable[int] = (
        rank * own_count + n for n in range(own_count) for rank in range(len(machines))
    )
    clusters: list[Clusters] = []
    if order.blocks:

        def tagged(number: int) -> bool:
            rank, one = tasks[number]
            return machines[rank].tagged(one, memory[rank])

        blocks = Blocks(module, order, tagged, len(machines))
        numbers = blocks.order()
        clusters = [Clusters(blocks.clusters, own, machines[0].folds) for own in memory]
    elif order.seed is not None:
        for number in range(len(tasks)):
            found.needs(number, walked(number, task.Need))
        found.leave_out(names, order.without)
        numbers = found.order(order, names)
    for number in numbers:
        rank, one = tasks[number]
        seen = clusters[rank].seen_by(number) if clusters else memory[rank]
        machines[rank].perform(one, seen)


class Clusters:
    """What the blocks of each cluster see: their own memory of what lies there, and what all
    share. ``of`` says which cluster runs a task."""

    def __init__(
        self, of: Mapping[int, int], shared: list[NDArray[Any]], folds: Mapping[int, Fold]
    ) -> None:
        self._of, self._shared, self.folds = of, shared, folds
        self._seen: dict[int, list[NDArray[Any]]] = {}

    def seen_by(self, number: int) -> list[NDArray[Any]]:
        """The memory of the task of a number."""
        cluster = self._of[number]
        if cluster not in self._seen:
            self._seen[cluster] = [
                np.full_like(memory, np.nan) if self.folds[slot].cluster else memory
                for slot, memory in enumerate(self._shared)
            ]
        return self._seen[cluster]


# -- tasks of a program --------------------------------------------------------------------------
def _tasks(module: Module, block: Block, env: dict[str, int], rounds: Rounds) -> Iterator[Task]:
    """Every task of ``block``, in the order of the text."""
    for op in block.ops:
        if op.when is not None and not op.when.evaluate(env):
            continue
        if isinstance(op, tile.For):
            for value in range(int(op.count.evaluate(env))):
                yield from _tasks(module, op.regions[0], {**env, op.var: value}, rounds)
        elif isinstance(op, task.Phase):
            yield from _tasks(module, op.regions[0], env, rounds)
        elif isinstance(op, task.Family):
            for point in np.ndindex(*op.sizes):
                own = {**env, **dict(zip(op.dims, map(int, point), strict=True))}
                own |= {name: rounds[name][point[0]] for name in op.each}
                yield Task(op, own, rounds)


def _loops_around(module: Module, family: task.Family) -> list[str]:
    """Variables of the loops around the phase of ``family``."""
    return [
        op.var
        for op in module.walk()
        if isinstance(op, tile.For) and any(inner is family for inner in op.regions[0].walk())
    ]


def _slots_of_values(families: list[task.Family], first: int) -> dict[Any, int]:
    values = [value for family in families for value in task.values_of(family)]
    return {value: first + number for number, value in enumerate(values)}


def _unset(kind: Any) -> NDArray[Any]:
    assert isinstance(kind, BufferType)
    numbers = storage(kind.dtype)
    return np.full(kind.shape, np.nan if numbers == np.float32 else 0, numbers)


def _regions(
    body: Body, core: Core, kind: type[task.Access]
) -> Iterator[tuple[int, tuple[slice | int, ...]]]:
    for region in _regions_of(body, core, kind):
        place = region.whole.place(core.env)
        yield place.slot, place.index


def _regions_of(body: Body, core: Core, kind: type[task.Access]) -> Iterator[Region]:
    """The regions of accesses of ``kind``, while the names of ``core`` are those of each."""
    for step in body.steps:
        if step.guard is not None and not step.guard(core.env):
            continue
        if isinstance(step, LoopStep):
            for _ in step.rounds(core):
                yield from _regions_of(step.body, core, kind)
        elif isinstance(step, RoutedStep):
            yield from _regions_of(step.body, core, kind)
        elif isinstance(step.op, kind):
            assert isinstance(step, (ReadStep, GiveStep))
            yield step.region


# -- tags ----------------------------------------------------------------------------------------
@dataclass(eq=False)
class Tags:
    """The tags of the words of a buffer, 0 where none has been given. Values that lie in a word one
    after the other, in run after run, have 1, 2, 3, .. as their tags, and 1 again behind the last
    that has ``bits`` bits."""

    bits: int
    versions: int
    kept: int | None
    words: NDArray[np.int64]
    run: int = 0

    @staticmethod
    def of(buffer: Buffer) -> Tags:
        """Those of a buffer to which nothing has been given."""
        assert buffer.tags is not None
        shape = buffer.type.shape
        words = np.zeros((buffer.kept or shape[0], *shape[1:]) if shape else (), np.int64)
        return Tags(buffer.tags, shape[0] if shape else 1, buffer.kept, words)

    def give(self, place: Place) -> None:
        """The values at ``place`` are given."""
        for at, tag in self._at(place):
            self.words[at] = tag

    def there(self, place: Place) -> bool:
        """Whether the words at ``place`` have the tags of its versions."""
        return all(bool(np.all(self.words[at] == tag)) for at, tag in self._at(place))

    def _at(self, place: Place) -> Iterator[tuple[tuple[slice | int, ...], int]]:
        """Where the words of each version lie, and their tag."""
        if self.kept is None:
            yield place.index, self._tag(self.run)
            return
        version, *rest = place.index
        every = range(self.versions)[version] if isinstance(version, slice) else [version]
        rounds = -(-self.versions // self.kept)
        for one in every:
            yield (one % self.kept, *rest), self._tag(self.run * rounds + one // self.kept)

    def _tag(self, before: int) -> int:
        return 1 + before % ((1 << self.bits) - 1)

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """``values`` of f32 with so many bits fewer: the nearest that are finite, of two the even
        one."""
        step = np.uint64(1 << self.bits)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        below = bits - bits % step
        up = (bits % step + below // step % 2) * 2 > step
        most = below % np.uint64(1 << 31) >= np.uint64(0x7F800000) - step
        nearest = np.where(up & ~most, below + step, below).astype(np.uint32)
        found = nearest.view(np.float32).reshape(values.shape)
        return np.where(np.isnan(values), values, found)


# -- steps of a task -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Fold:
    """What of a buffer lies over each other: versions, the first index, modulo those that are
    ``kept``, and in the memory of a ``cluster`` the index in a dim modulo an extent."""

    kept: int | None
    cluster: tuple[int, int] | None

    def dims(self) -> Iterator[tuple[int, int]]:
        """Dims whose index is taken modulo a number, and that number."""
        if self.kept is not None:
            yield 0, self.kept
        if self.cluster is not None:
            yield self.cluster


@dataclass(frozen=True)
class Region:
    """A region as a program means it, ``whole``, in memory number ``slot``, and how it lies
    there."""

    whole: Window
    slot: int
    fold: Fold

    def place(self, env: Mapping[str, int]) -> Place:
        """Where it lies."""
        found = self.whole.place(env)
        index = list(found.index)
        for dim, extent in self.fold.dims():
            at = index[dim]
            if not isinstance(at, slice):
                index[dim] = at % extent
                continue
            start, stop, step = at.indices(self.whole.extent(dim))
            shift = start // extent * extent
            if stop - shift > extent:
                fail("interp-view", f"{stop - start} elements are taken at once of {extent}")
            index[dim] = slice(start - shift, stop - shift, step)
        return replace(found, index=tuple(index))


@dataclass(eq=False)
class ReadStep(Step):
    """A need or a stream: a copy of the region; what is not below the limit of a stream is 0."""

    region: Region
    slot: int
    below: Memo[int] | None = None
    first: Memo[int] | None = None

    def run(self, core: Core) -> Iterator[None]:
        if self.below and self.first and self.first(core.env) >= self.below(core.env):
            # Nothing is read, so nothing needs to be there.
            core.memory[self.slot][...] = 0
            yield
            return
        place = self.region.place(core.env)
        values = np.array(place.read(core.memory))
        if self.below is not None:
            assert isinstance(self.op, task.Stream)
            at = place.index[self.op.dim]
            limit = self.below(core.env)
            if isinstance(at, slice):
                axis = sum(isinstance(i, slice) for i in place.index[: self.op.dim])
                positions = np.arange(core.memory[place.slot].shape[self.op.dim])[at]
                values[(slice(None),) * axis + (positions >= limit,)] = 0
            elif at >= limit:
                values[...] = 0
        core.memory[self.slot][...] = values
        yield


@dataclass(eq=False)
class RoutedStep(Step):
    """A body that runs where any of the gates is not 0."""

    gates: Window
    body: Body

    def run(self, core: Core) -> Iterator[None]:
        if np.any(self.gates.place(core.env).read(core.memory)):
            yield from core.run(self.body)


@dataclass(eq=False)
class LocalStep(Step):
    """Memory that holds nothing."""

    slot: int

    def run(self, core: Core) -> Iterator[None]:
        memory = core.memory[self.slot]
        memory[...] = np.nan if memory.dtype == np.float32 else 0
        yield


@dataclass(eq=False)
class GiveStep(Step):
    """Store a value into a region."""

    region: Region
    source: Window
    tags: Tags | None = None
    coded: bool = False

    def run(self, core: Core) -> Iterator[None]:
        values = self.source.place(core.env).read(core.memory)
        values = coded_rows(values) if self.coded else values
        if self.tags is not None:
            values = self.tags.rounded(values)
            self.tags.give(self.region.whole.place(core.env))
        self.region.place(core.env).write(core.memory, values)
        yield


class TaskCompiler(Compiler):
    """Compiles the bodies of tasks; ``folds`` and ``tags`` say by slot how a buffer lies in memory,
    and have the tags of its words. Rows that are given to ``coded`` ones are rounded."""

    def __init__(
        self,
        slots: Mapping[Any, int],
        folds: Mapping[int, Fold],
        tags: Mapping[int, Tags],
        coded: Container[int],
    ) -> None:
        super().__init__(slots, frozenset())
        self.folds, self._tags, self._coded = folds, tags, coded

    def region(self, op: task.Access, names: Names) -> Region:
        """The region that an access names."""
        slot = self._slots[op.view.buffer]
        return Region(self.window(op, 0, names), slot, self.folds[slot])

    def makers(self) -> Makers:
        return _MAKERS

    def read(self, op: task.Need | task.Stream, guard: Memo[bool] | None, names: Names) -> Step:
        """A region of a buffer into a value."""
        limit = first = None
        if isinstance(op, task.Stream) and op.below is not None:
            limit = names.expr(op.below, op.span)
            at = op.view.indices[op.dim] if op.dim < len(op.view.indices) else None
            first = names.expr(at.start, op.span) if isinstance(at, Range) else None
        return ReadStep(op, guard, self.region(op, names), self._slots[op.result], limit, first)

    def routed(self, op: task.Routed, guard: Memo[bool] | None, names: Names) -> Step:
        """What is done for experts that rows are sent to."""
        return RoutedStep(op, guard, self.window(op, 0, names), self.body(op.regions[0], names))

    def local(self, op: task.Local, guard: Memo[bool] | None, names: Names) -> Step:
        """A value that holds nothing."""
        return LocalStep(op, guard, self._slots[op.result])

    def give(self, op: task.Give, guard: Memo[bool] | None, names: Names) -> Step:
        """A value into a region."""
        region = self.region(op, names)
        tags = self._tags.get(region.slot)
        coded = region.slot in self._coded
        return GiveStep(op, guard, region, self.window(op, 1, names), tags, coded)


_Make = Callable[[Any, Any, Memo[bool] | None, Names], Step]
_MAKERS: dict[type[Op], _Make] = {
    tile.Compute: Compiler.compute,
    tile.For: Compiler.loop,
    task.Need: TaskCompiler.read,
    task.Stream: TaskCompiler.read,
    task.Local: TaskCompiler.local,
    task.Routed: TaskCompiler.routed,
    task.Give: TaskCompiler.give,
}
