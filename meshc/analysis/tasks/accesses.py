"""What tasks read and write: each need, stream and give with all that is known where it stands.

An access is taken at a *point*: a value for each of its names, which are the loops around its
phase, the dims of its family, the loops in the task, and the run-time scalars. Two accesses are
held against each other at two points, of which the second has other names; where both speak of the
same request, its scalars are the same. Two accesses of what ranks give each other may be those of
different ranks, all others are of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meshc.analysis.tasks.shares import runner
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import AHEAD, OWNER, POSITION, tokens_of_request
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.ranks import RANK
from meshc.ir.values import Value
from meshc.ir.views import Point, Range

Path = tuple[tuple[int, str], ...]
"""Places in a program, from the outside inwards: in each block the number of an op, and the
variable of the loop that it is, if it is one."""

OTHER = "other."
"""What the names of a second point usually begin with."""


@dataclass(frozen=True, eq=False)
class Access:
    """A need, a stream or a give. ``names`` has the loops and dims around it, outermost first,
    ``path`` the places of its phase in the program, ``known`` where it is done, and ``requests``
    the name that counts the requests of each scalar of which every request has its own."""

    op: task.Access
    family: task.Family
    phase: task.Phase
    names: tuple[str, ...]
    path: Path
    known: Cond
    requests: Mapping[str, str]

    @property
    def buffer(self) -> Value:
        """The buffer that is read or written."""
        return self.op.view.buffer

    @property
    def around(self) -> tuple[str, ...]:
        """The names of the loops around its phase."""
        return tuple(loop for _, loop in self.path if loop)

    @property
    def folds(self) -> bool:
        """Whether it stands in a loop of its task."""
        return len(self.names) > len(self.around) + len(self.family.dims)

    @property
    def words(self) -> str:
        """What it is, for a message."""
        return f"@{self.family.name}: {self.op.NAME} {self.op.view}"

    @cached_property
    def elements(self) -> tuple[str, ...]:
        """A name for the index in each dim of the buffer."""
        return tuple(f"element.{n}" for n in range(len(self.op.view.buffer_type.shape)))

    @cached_property
    def touched(self) -> Cond:
        """Where, over names and elements, the element is one of the region."""
        parts = [self.known]
        shape = self.op.view.buffer_type.shape
        for place, (name, extent) in enumerate(zip(self.elements, shape, strict=True)):
            at, indices = Expr.var(name), self.op.view.indices
            index = indices[place] if place < len(indices) else None
            if isinstance(index, Point):
                parts.append(Cond.eq(at, index.at))
            elif isinstance(index, Range):
                reach = index.extent * index.step
                parts.append(Cond.between(index.start, at, index.start + reach))
                if index.step != 1:
                    parts.append(Cond.eq((at - index.start) % index.step, 0))
            else:
                parts.append(Cond.between(0, at, extent))
            limit = self.op.below if isinstance(self.op, task.Stream) else None
            if limit is not None and place == self.op.dim:  # type: ignore[union-attr]
                parts.append(Cond.lt(at, limit))
        return Cond.all(parts)

    @property
    def block(self) -> Expr | None:
        """The block that runs the task, None where tasks are not placed, and where that depends
        on which experts are chosen."""
        phase = self.phase
        if not phase.blocks or any(map(routed_of, families_of(phase))):
            return None
        number, count = _numbered(phase, self.family)
        if not phase.groups:
            return runner(number, count, phase.blocks)
        cluster = self.cluster
        assert cluster is not None
        return cluster * phase.cluster + runner(number, count, phase.cluster)

    @property
    def group(self) -> Expr | None:
        """The group of the task, None where tasks are not dealt to clusters."""
        if not self.phase.groups:
            return None
        per_group = self.family.domain[self.family.grouped] // self.phase.groups
        return Expr.var(self.family.grouped) // per_group

    @property
    def cluster(self) -> Expr | None:
        """The cluster of that block, None where there are none."""
        phase = self.phase
        if not phase.cluster:
            return None
        if self.group is not None:
            return runner(self.group, phase.groups, phase.blocks // phase.cluster)
        block = self.block
        assert block is not None
        return block // phase.cluster


def _numbered(phase: task.Phase, family: task.Family) -> tuple[Expr, int]:
    """The number of a task of ``family`` among those that its phase, or a group of it, has, and how
    many these are."""
    number = Expr.const(0)
    first = count = 0
    for one in families_of(phase):
        own = dict(one.domain)
        if phase.groups:
            own[one.grouped] //= phase.groups
        if one is family:
            first = count
            for dim, size in own.items():
                at = Expr.var(dim)
                number = number * size + (at % size if size < one.domain[dim] else at)
        count += prod(own.values())
    return number + first, count


@dataclass(frozen=True)
class At:
    """An access at a point whose names begin with ``prefix``; so do elements, but for those that
    are ``shared`` with other accesses, the first of which is number ``shared``."""

    access: Access
    module: Module
    prefix: str = ""
    shared: int = 0

    def name(self, name: str) -> str:
        """A name of the point."""
        return self.prefix + name

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the point, without elements that are shared."""
        own = self.access.elements[: self.shared]
        return tuple(map(self.name, (*self.access.names, *self.module.scalars, *own)))

    @property
    def of_ranks(self) -> bool:
        """Whether ranks give each other what is read or written."""
        return any(
            b.ranks is not None and b.value is self.access.buffer for b in self.module.buffers
        )

    @property
    def touched(self) -> Cond:
        """:attr:`Access.touched` at this point."""
        return self.moved(self.access.touched)

    @property
    def block(self) -> Expr | None:
        """:attr:`Access.block` at this point."""
        block = self.access.block
        return None if block is None else block.substitute(self._substitution)

    @property
    def group(self) -> Expr | None:
        """:attr:`Access.group` at this point."""
        group = self.access.group
        return None if group is None else group.substitute(self._substitution)

    @property
    def cluster(self) -> Expr | None:
        """:attr:`Access.cluster` at this point."""
        cluster = self.access.cluster
        return None if cluster is None else cluster.substitute(self._substitution)

    def moved(self, cond: Cond) -> Cond:
        """``cond``, which is about the access, at this point."""
        return cond.substitute(self._substitution)

    def of(self, name: str) -> Expr:
        """The value of a name at this point."""
        return Expr.var(self.name(name))

    @property
    def _substitution(self) -> dict[str, Expr | int]:
        own = self.access.elements[: self.shared]
        names = (*self.access.names, *self.module.scalars, *own)
        return {name: self.of(name) for name in names}


def accesses(module: Module) -> Iterator[Access]:
    """Every access of ``module``, in text order."""
    bounds = [
        Cond.between(low, Expr.var(name), high + 1)
        & Cond.eq(Expr.var(name) % module.multiples.get(name, 1), 0)
        for name, (low, high) in module.scalars.items()
    ]
    around = Around((), (), Cond.all(bounds), {})
    yield from _of_program(module.program.body, around)


@dataclass(frozen=True)
class Around:
    """What is known in a block of a program."""

    names: tuple[str, ...]
    path: Path
    known: Cond
    requests: Mapping[str, str]

    def behind(self, op: Op) -> Around:
        """The same where the guard of ``op`` holds."""
        known = self.known if op.when is None else self.known & op.when
        return Around(self.names, self.path, known, self.requests)

    def loop(self, op: tile.For) -> Around:
        """What is known in the body of a loop."""
        here = self.behind(op)
        known = here.known & Cond.between(0, Expr.var(op.var), op.count)
        requests = {**self.requests, **dict.fromkeys(op.each, op.var)}
        return Around((*self.names, op.var), self.path, known, requests)

    def family(self, op: task.Family) -> Around:
        """What is known in a task."""
        here = self.behind(op)
        known = Cond.all(Cond.between(0, Expr.var(d), n) for d, n in op.domain.items())
        requests = {**self.requests, **dict.fromkeys(op.each, op.dims[0] if op.dims else "")}
        return Around((*self.names, *op.dims), self.path, here.known & known, requests)

    def at(self, *step: tuple[int, str]) -> Around:
        """The same, one place further in."""
        return Around(self.names, (*self.path, *step), self.known, self.requests)


def _of_program(block: Block, around: Around) -> Iterator[Access]:
    for place, op in enumerate(block.ops):
        if isinstance(op, tile.For):
            yield from _of_program(op.regions[0], around.at((place, op.var)).loop(op))
        elif isinstance(op, task.Phase):
            here = around.at((place, "")).behind(op)
            for family in op.regions[0].ops:
                if isinstance(family, task.Family):
                    yield from _of_task(op, family, family.regions[0], here.family(family))


def _of_task(
    phase: task.Phase, family: task.Family, block: Block, around: Around
) -> Iterator[Access]:
    for op in block.ops:
        if isinstance(op, tile.For):
            yield from _of_task(phase, family, op.regions[0], around.loop(op))
        elif isinstance(op, task.Routed):
            yield from _of_task(phase, family, op.regions[0], around.behind(op))
        elif isinstance(op, (task.Need, task.Stream, task.Give)):
            here = around.behind(op)
            yield Access(op, family, phase, here.names, here.path, here.known, here.requests)


def same_requests(first: At, second: At) -> Cond:
    """How the scalars of two points stand to each other: those that a run is given once are equal,
    those of a request are equal where the requests are, in a batch of tokens where the owners are,
    and which rank runs a task is free where ranks give each other what both use."""
    parts = []
    for name in first.module.scalars:
        if name == RANK and first.of_ranks and second.of_ranks:
            continue
        equal = Cond.eq(first.of(name), second.of(name))
        here = first.access.requests.get(name)
        there = second.access.requests.get(name)
        if here and there:
            rows = first.of(here), second.of(there)
            if OWNER in first.module.scalars:
                equal = _of_owners(first, second, name, *rows)
            else:
                together = tokens_of_request(first.module)
                equal = equal | _apart(*(row // together for row in rows))
        parts.append(equal)
    return Cond.all(parts)


def _of_owners(first: At, second: At, name: str, row: Expr, other: Expr) -> Cond:
    """How a scalar of two rows of a batch of tokens stands to itself: it is equal where the rows
    are; ``pos`` is equal where the owners are, and there rows stand as far apart as ``ahead``."""
    equal = Cond.eq(first.of(name), second.of(name))
    of_others = _apart(first.of(OWNER), second.of(OWNER))
    if name == POSITION:
        return equal | of_others
    of_row = equal | _apart(row, other)
    if name == AHEAD:
        begins = Cond.eq(row - first.of(name), other - second.of(name))
        return of_row & (begins | of_others)
    return of_row


def _apart(one: Expr, other: Expr) -> Cond:
    """Where two numbers differ."""
    return Cond.lt(one, other) | Cond.gt(one, other)


def same_rank(first: At, second: At) -> Cond:
    """Where one rank runs both tasks."""
    if RANK not in first.module.scalars:
        return Cond.true()
    return Cond.eq(first.of(RANK), second.of(RANK))


def differ(first: At, second: At) -> Cond:
    """Where two points of one access are not the same."""
    parts = [Cond.false()]
    for name in (*first.access.names, *([RANK] if first.of_ranks else [])):
        parts.append(_apart(first.of(name), second.of(name)))
    return Cond.any(parts)


def families_of(phase: task.Phase) -> list[task.Family]:
    """The families of a phase, in text order."""
    return [op for op in phase.regions[0].ops if isinstance(op, task.Family)]


def routed_of(family: task.Family) -> task.Routed | None:
    """What its tasks do for one expert each, None where they do not."""
    return next((op for op in family.regions[0].ops if isinstance(op, task.Routed)), None)


def tasks_of(phase: task.Phase) -> int:
    """How many tasks a phase has."""
    return sum(prod(family.sizes) for family in families_of(phase))
