"""What each task of a program streams, needs and computes, read from its text at given positions.

A stream is *brought* by way of a block's ring if a product takes it, or each task has a part of its
own of it. What all tasks of a family read alike (a norm's weights, the vector that an earlier phase
gave) each block *reads* once in a phase, and a few bytes of a task's own (frequencies, a residual)
too. Streams of one body, or of one round of a loop, are brought together. Left sides of products
that lie in memory, rounded, come through the ring beside the weights, for several tasks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES
from meshc.analysis.tasks.accesses import routed_of
from meshc.analysis.tasks.routing import experts_of
from meshc.analysis.tasks.tiles import (
    CACHE_PAGE,
    MOST_TOGETHER,
    USUAL_PAGE,
    columns_are_copied,
    digit_bytes,
    looked_up_together,
    streamed_copy_bytes,
    streamed_tile_bytes,
)
from meshc.cost.tasks.attended import attended, attended_at_once, attending_bytes, taken
from meshc.cost.tasks.coded_blocks import FRAGMENT_ROWS, Coded, coded_of
from meshc.cost.tasks.rounds import along, decided, repeated
from meshc.cost.tasks.stages import (
    SMALL_BYTES,
    SUMS_BYTES,
    FamilyWork,
    LoopWork,
    Meeting,
    PhaseWork,
    Piece,
    Stage,
    TaskWork,
)
from meshc.ir.affine import Expr
from meshc.ir.batch import AHEAD, OWNER
from meshc.ir.coded_rows import coded_row_bytes
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.types import DType
from meshc.ir.values import Value

Scalars = Mapping[str, int | Sequence[int]]
"""Run-time scalars, and those of which every request has its own."""


def work_of(module: Module, scalars: Scalars) -> tuple[Stage, ...]:
    """The phases of a module of the task level where its scalars have these values, and where
    blocks meet: in front of each phase if the module does not say. Raises ValueError for another
    level, and for a scalar that is missing or outside of its bounds."""
    if module.level != "task":
        raise ValueError(f"a module of the {module.level} level has no tasks")
    single, each = _checked(module, scalars)
    meets = any(isinstance(op, task.Meet) for op in module.walk())
    return tuple(_stages(_Reader(module, each, meets), module.program.body, single))


def _checked(
    module: Module, scalars: Scalars
) -> tuple[dict[str, int], dict[str, NDArray[np.int64]]]:
    rounds = tile.scalars_of_rounds(module)
    single: dict[str, int] = {}
    each: dict[str, NDArray[np.int64]] = {}
    for name, (low, high) in module.scalars.items():
        given = scalars.get(name)
        if given is None:
            raise ValueError(f"'{name}' has no value; it is {low} to {high}")
        values = np.array([given] if isinstance(given, int) else given, np.int64)
        count = rounds.get(name, 1)
        if len(values) not in (1, count):
            raise ValueError(f"'{name}' has {len(values)} values for {count} requests")
        if np.any((values < low) | (values > high)):
            raise ValueError(f"'{name}' is not {low} to {high}")
        if name in rounds:
            each[name] = np.broadcast_to(values, (count,))
        else:
            single[name] = int(values[0])
    return single, each


@dataclass(frozen=True)
class _Reader:
    """What is known of all of a module: scalars of which each request has its own, and whether it
    says where blocks meet."""

    module: Module
    each: Mapping[str, NDArray[np.int64]]
    meets: bool


def _stages(reader: _Reader, block: Block, env: Mapping[str, int]) -> Iterator[Stage]:
    choices: set[Value] = set()
    for op in block.ops:
        if op.when is not None and not op.when.evaluate(env):
            continue
        if isinstance(op, task.Meet):
            yield Meeting(op.kind, _linked(reader.module, block, op))
        elif isinstance(op, task.Phase):
            if not reader.meets:
                yield Meeting()
            found = [
                _Family(reader.module, f, env, reader.each, op.groups)
                for f in op.regions[0].ops
                if isinstance(f, task.Family) and (f.when is None or f.when.evaluate(env))
            ]
            whole = len({form for family in found for form in family.forms()}) == 1
            for family in found:
                family.whole = whole
            families = tuple(work for family in found for work in family.work())
            made = _choices(op) - choices
            choices |= made
            yield PhaseWork(op.name, families, op.blocks, op.cluster, op.groups, bool(made))
        elif isinstance(op, tile.For):
            count, (body,) = int(op.count.evaluate(env)), op.regions
            decisions = [decided(body, op.var, value) for value in range(count)]
            each = {
                one: tuple(_stages(reader, body, {**env, op.var: decisions.index(one)}))
                for one in dict.fromkeys(decisions)
            }
            for times, kinds in repeated(decisions):
                rounds = tuple(stage for kind in kinds for stage in each[kind])
                yield from rounds if times == 1 else (LoopWork(times, rounds),)


def _choices(phase: task.Phase) -> set[Value]:
    """The gates behind which something of a phase stands."""
    asked = {op.gates.buffer for op in phase.regions[0].walk() if isinstance(op, task.Routed)}
    return {
        op.view.buffer
        for op in phase.regions[0].walk()
        if isinstance(op, task.Need) and asked & {*op.results}
    }


def _decoded(family: task.Family) -> set[Value]:
    """Codes, and what groups of them have once: what numbers are made of as it is stored."""
    return {
        view.buffer
        for op in family.regions[0].walk()
        if isinstance(op, tile.Compute) and op.kernel == "dequantise"
        for view in op.views()[1:]
    }


def _linked(module: Module, block: Block, meeting: task.Meet) -> int:
    """Bytes that the phase behind a meeting needs of other ranks."""
    after = block.ops[block.ops.index(meeting) + 1 :]
    phase = next((op for op in after if isinstance(op, task.Phase)), None)
    if phase is None or module.ranks is None:
        return 0
    of_ranks = {buffer.value for buffer in module.buffers if buffer.ranks is not None}
    size = 0
    for family in phase.regions[0].ops:
        for op in family.regions[0].walk():
            if isinstance(op, task.Need) and op.view.buffer in of_ranks:
                assert isinstance(family, task.Family)
                extents = (extent.constant for extent in op.view.shape())
                size += prod(family.sizes) * prod(extents) * op.view.buffer_type.dtype.bytes
    return size * (module.ranks.count - 1) // module.ranks.count


@dataclass(frozen=True)
class _At:
    """Points of tasks: a row for each round of the loops around, a column for each task; what names
    are there, and which of the points there are."""

    env: Mapping[str, NDArray[np.int64] | int]
    there: NDArray[np.bool_]

    def value(self, expr: Expr) -> NDArray[np.int64]:
        """An expression at each point."""
        return np.broadcast_to(np.asarray(expr.evaluate(self.env), np.int64), self.there.shape)

    def behind(self, op: Op) -> NDArray[np.bool_]:
        """Which points do ``op``."""
        return self.there if op.when is None else self.there & op.when.evaluate(self.env)

    def chosen(self, op: task.Routed, experts: int, count: int) -> _At:
        """Points of experts that are chosen, ``count`` of so many, as far apart as may be."""
        at = self.value(Expr.var(op.expert))
        there = (at + 1) * count // experts > at * count // experts
        return _At(self.env, self.behind(op) & there)

    def loop(self, op: tile.For, each: Mapping[str, NDArray[np.int64]]) -> _At:
        """Points of all rounds of a loop, in order."""
        here = self.behind(op)
        counts = np.where(here, self.value(op.count), 0)
        rounds, (rows, tasks) = int(counts.max(initial=0)), here.shape

        def more(a: NDArray[np.int64] | int) -> NDArray[np.int64]:
            return np.repeat(np.broadcast_to(np.asarray(a, np.int64), here.shape), rounds, axis=0)

        names = {name: more(value) for name, value in self.env.items()}
        number = np.tile(np.arange(rounds), rows)[:, None].repeat(tasks, axis=1)
        names[op.var] = number
        names |= {name: each[name][number] for name in op.each}
        return _At(names, number < more(counts))


class _Family:
    """Reads one family."""

    def __init__(
        self,
        module: Module,
        family: task.Family,
        env: Mapping[str, int],
        each: Mapping[str, NDArray[np.int64]],
        groups: int = 0,
    ) -> None:
        self.module, self.family, self.each = module, family, each
        self.groups: tuple[int, ...] = ()
        self.roles = {buffer.value: buffer.role for buffer in module.buffers}
        self.coded = {b.value: b.coded for b in module.buffers if b.coded is not None}
        domain = family.domain
        self.routed = routed_of(family)
        if self.routed is not None:  # tasks of chosen experts are dealt, expert by expert
            domain = {self.routed.expert: domain.pop(self.routed.expert), **domain}
        self.dims, self.sizes = tuple(domain), tuple(domain.values())
        points = np.indices(self.sizes or (1,)).reshape(max(len(self.sizes), 1), 1, -1)
        names: dict[str, NDArray[np.int64] | int] = {
            **env,
            **dict(zip(self.dims, points[: len(self.dims)], strict=True)),
        }
        names |= {name: each[name][points[0]] for name in family.each}
        if groups:
            place = self.dims.index(family.grouped)
            of_tasks = points[place, 0] // (self.sizes[place] // groups)
            self.groups = tuple(map(int, of_tasks))
        self.start = _At(names, np.ones(points.shape[1:], bool))
        self.own = np.zeros(points.shape[-1], np.int64)
        self.read: dict[str, tuple[int, bool]] = {}
        self.parts: dict[str, int] = {}
        self.names = {*self.dims, *family.each}
        self.uses = _uses(family)
        left = {use.views()[1].buffer for use in self.products()}
        self.streamed = left & {
            op.result
            for op in family.regions[0].walk()
            if isinstance(op, task.Need) and op.view.buffer_type.dtype is not DType.F32
        }
        self.copied: dict[str, int] = {}
        self.copies: set[Value] = set()
        if self.streamed and columns_are_copied(module.the_device(), *self.left()):
            self.streamed, self.copies = set(), self.streamed
        self.decoded = _decoded(family)
        self.whole = True  # whether products of codes may be of whole numbers
        self.brought: list[tuple[Piece, NDArray[np.int64]]] = []

    def work(self) -> Iterator[FamilyWork]:
        """What its tasks do: as one family or, where left sides of products depend on the first dim
        alone, as one for each of its values."""
        (body,) = self.family.regions
        self.block(body, self.start, self.names)
        pieces = [(piece, row) for piece, rows in self.brought for row in rows]
        table = np.array([self.own, *(row for _, row in pieces)]).T
        table = self.of_neighbours(table)
        kinds, which = np.unique(table, axis=0, return_inverse=True)
        made = [
            TaskWork(
                tuple(
                    replace(piece, bytes=int(n), tokens=int(row[-1]))
                    for n, (piece, _) in zip(row[1:-1], pieces, strict=True)
                    if n
                ),
                int(row[0]),
            )
            for row in kinds
        ]
        tasks = self.beside_vectors(tuple(made[k] for k in which.reshape(-1)))
        vectors, width = self.left()
        if not self.parts:
            shape = vectors, width, self.groups, self.copied
            found = FamilyWork(self.family.name, self.run(tasks), self.read, self.held(), *shape)
            yield replace(found, candidates=self.candidates())
            return
        count = len(tasks) // self.sizes[0]
        for part in range(self.sizes[0]):
            own = {f"{text} of {part}": (size, False) for text, size in self.parts.items()}
            these, name = slice(part * count, (part + 1) * count), f"{self.family.name}.{part}"
            copied = {f"{text} of {part}": size for text, size in self.copied.items()}
            shape = vectors, width, self.groups[these], copied
            if some := self.run(tasks[these]):
                yield FamilyWork(name, some, self.read | own, self.held(), *shape)

    def of_neighbours(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of tasks, of tokens of a batch that a block attends for at once one row for all, and
        behind what each brings for how many it is."""
        tokens, most = self.sizes[0] if self.sizes else 1, 1
        if OWNER in self.module.scalars:
            most = attended_at_once(self.module, self.family)
        begins = np.full(tokens, True)
        if most > 1:
            begins = self.each[AHEAD] % most == 0
        firsts = np.flatnonzero(begins)
        rows = table.reshape(tokens, len(table) // tokens, -1)
        joined = np.maximum.reduceat(rows, firsts, axis=0)
        joined[..., 0] = np.add.reduceat(rows[..., 0], firsts, axis=0)
        count = np.diff(firsts, append=tokens)[:, None, None]
        count = np.broadcast_to(count, (*joined.shape[:2], 1))
        return np.concatenate([joined, count], axis=2).reshape(-1, table.shape[1] + 1)

    def beside_vectors(self, tasks: tuple[TaskWork, ...]) -> tuple[TaskWork, ...]:
        """``tasks`` with the vectors that come beside their weights, of as many as a block has."""
        if not self.streamed:
            return tasks
        vectors, width = self.left()
        device = self.module.the_device()
        each = max(-(-len(self.run(tasks)) // device.cores), 1)
        together = -(-each // -(-each // MOST_TOGETHER))
        rows = max(sum(p.bytes for p in one.pieces if p.kind == "product") for one in tasks)
        share = DType.F16.bytes * vectors * width / together / max(rows, 1)

        def beside(piece: Piece) -> Piece:
            if piece.kind != "product":
                return piece
            block = self.streamed_block(piece.coded)
            copied = streamed_copy_bytes(device, *block, together, piece.coded is not None)
            place = streamed_tile_bytes(device, *block, piece.coded is not None)
            return replace(piece, vectors=share, copied=copied, place=place)

        kinds = {
            one: replace(one, pieces=tuple(map(beside, one.pieces))) for one in dict.fromkeys(tasks)
        }
        return tuple(kinds[one] for one in tasks)

    def streamed_block(self, coded: Coded | None) -> tuple[int, int]:
        """Bytes of a block of rows, and those of the vectors beside it."""
        rows, fragments = FRAGMENT_BYTES, 1
        if coded is not None:
            rows, fragments = coded.bytes, coded.groups * coded.fragments
        return rows, DType.F16.bytes * FRAGMENT * self.left()[0] * fragments

    def run(self, tasks: tuple[TaskWork, ...]) -> tuple[TaskWork, ...]:
        """Those of ``tasks`` that are dealt: of experts those of chosen ones."""
        return tasks if self.routed is None else tuple(one for one in tasks if one.pieces)

    def block(self, block: Block, at: _At, names: set[str]) -> None:
        """A body: its own streams together, then those of its loops."""
        together = np.zeros(at.there.shape, np.int64)
        first: Value | None = None
        for op in block.ops:
            if isinstance(op, (task.Need, task.Stream)):
                size = self.size(op, at)
                fresh = isinstance(op, task.Stream)
                mine = op.view.free_vars & names or op.when is not None
                if op.result in self.streamed:
                    continue
                if op.result in self.copies:
                    self.copied[str(op.view)] = int(size.max(initial=0))
                    if mine and self.of_first(op):
                        self.parts[str(op.view)] = 0
                elif op.result in self.uses:
                    together = together + size
                    first = first or op.result
                elif not mine:
                    self.read[str(op.view)] = (int(size.max(initial=0)), fresh)
                elif not fresh and self.products() and self.of_first(op):
                    self.parts[str(op.view)] = int(size.max(initial=0))
                elif not fresh or size.max(initial=0) < SMALL_BYTES:
                    self.own += size.sum(axis=0)
                else:
                    together = together + size
                    first = first or op.result
        if first is not None:
            self.brought.append((self.piece(first), together))
        for op in block.ops:
            if not any(isinstance(o, _READS) for region in op.regions for o in region.walk()):
                continue
            if isinstance(op, tile.For):
                self.block(op.regions[0], at.loop(op, self.each), {*names, op.var})
            elif isinstance(op, task.Routed):
                self.block(
                    op.regions[0], at.chosen(op, *experts_of(self.module, self.family, op)), names
                )

    def of_first(self, op: task.Need | task.Stream) -> bool:
        """Whether which elements are read depends on the first of several dims alone."""
        first = {*self.dims[:1]}
        return len(self.dims) > 1 and op.view.free_vars & self.names == first

    def size(self, op: task.Need | task.Stream, at: _At) -> NDArray[np.int64]:
        """Bytes that each point reads."""
        view, here = op.view, at.behind(op)
        size = np.full(at.there.shape, self.whole_size(op), np.int64)
        if isinstance(op, task.Stream) and op.below is not None:
            start, extent = along(view, op.dim)
            below = np.clip(at.value(op.below) - at.value(start), 0, extent)
            size = size // extent * below
        return np.where(here, size, 0)

    def whole_size(self, op: task.Need | task.Stream) -> int:
        """Bytes of all that ``op`` is a view of."""
        extents, kind = [extent.constant for extent in op.view.shape()], op.view.buffer_type.dtype
        if op.view.buffer in self.coded:
            return prod(extents[:-1]) * coded_row_bytes(self.coded[op.view.buffer], extents[-1])
        if isinstance(op, task.Stream) and op.result not in self.decoded:
            kind = self.module.stored(kind)
        return prod(extents) * kind.bits // 8

    def by_statements(self, of_floats: bool) -> float:
        """Instructions of warps for a byte that its tasks attend to statement by statement; 0 where
        tensor cores attend."""
        found = attended(self.family)
        if found is None or found.by_tiles:
            return 0.0
        streams = (op for op in self.family.regions[0].walk() if isinstance(op, task.Stream))
        tile = sum(self.whole_size(op) for op in streams if op.below is not None)
        return found.issued(of_floats) / tile

    def piece(self, stream: Value) -> Piece:
        """What is done with what a stream brings."""
        use = self.uses.get(stream)
        if use is None:
            return Piece(0)
        read = next(o for o in self.family.regions[0].walk() if stream in o.results)
        assert isinstance(read, task.Stream)
        result = use.views()[0].shape()
        rows = prod(extent.constant for extent in result[:-1])
        if self.roles[read.view.buffer] == "state":
            of_floats = read.view.buffer in self.coded
            many, together = rows * taken(self.family, stream), 1
            if read.below is not None:
                page = int(self.module.option(CACHE_PAGE, USUAL_PAGE))
                together = looked_up_together(along(read.view, read.dim)[1], page)
            found = attended(self.family)
            return Piece(
                0,
                "attention",
                many,
                of_floats=of_floats,
                looked_up=together,
                issued=self.by_statements(of_floats),
                together=found is not None and found.of_latents,
            )
        filled = min(1.0, self.multiplied() / FRAGMENT_ROWS)
        coded = coded_of(self.module, self.family, stream)
        if coded is not None:
            coded = replace(coded, whole=self.multiplied_whole(coded))
        return Piece(0, "product", rows, filled, coded)

    def forms(self) -> set[Coded | None]:
        """The blocks of codes that products multiply, None for numbers and where vectors are not
        in the memory of a block."""
        products = [*self.products()]
        streams = (stream for stream, use in self.uses.items() if use in products)
        found = {coded_of(self.module, self.family, one) for one in streams}
        return {one if one and self.multiplied_whole(one) else None for one in found}

    def multiplied_whole(self, coded: Coded) -> bool:
        """Whether ``coded`` blocks are multiplied as whole numbers."""
        by_blocks = self.streamed or self.copies
        return self.whole and not by_blocks and coded.multiplied_whole(*self.left())

    def multiplied(self) -> int:
        """Rows of weights that a task multiplies."""
        return sum(use.views()[0].shape()[-1].constant for use in self.products())

    def products(self) -> list[tile.Compute]:
        """The products with weights."""
        found = (
            use
            for stream, use in self.uses.items()
            for read in self.family.regions[0].walk()
            if isinstance(read, task.Stream)
            and stream in read.results
            and self.roles[read.view.buffer] == "weight"
        )
        return [*dict.fromkeys(found)]

    def left(self) -> tuple[int, int]:
        """Vectors that products have on their left sides, and the elements of the widest."""
        shapes = [[extent.constant for extent in use.views()[1].shape()] for use in self.products()]
        width = max((shape[-1] for shape in shapes), default=0)
        return max((prod(shape[:-1]) for shape in shapes), default=1), width

    def candidates(self) -> int:
        """Among how many experts a task chooses those of a token."""
        ops = self.family.regions[0].walk()
        chosen = (op for op in ops if isinstance(op, tile.Compute) and op.kernel == "top_k")
        return max((op.views()[0].shape()[-1].constant for op in chosen), default=0)

    def held(self) -> int:
        """Bytes of a block's memory that its tasks take: left sides of products, as 16 bits and
        with up to four vectors what rounding left as well, so that products are those of f32, or
        as digits, and sums of warps; or what they attend in."""
        vectors, width = self.left()
        if attending := attending_bytes(self.module, self.family):
            return attending + SUMS_BYTES * vectors
        if self.streamed:
            return SUMS_BYTES // 2 * vectors
        columns = 2 * width * vectors * (2 if vectors <= 4 else 1)
        groups = {
            piece.coded.group for piece, _ in self.brought if piece.coded and piece.coded.whole
        }
        columns = max((digit_bytes(group, vectors, width) for group in groups), default=columns)
        return columns + SUMS_BYTES * vectors if width else 0


_READS = (task.Need, task.Stream)


def _uses(family: task.Family) -> dict[Value, tile.Compute]:
    """The product that takes each stream, perhaps behind a kernel that widens it, or a copy in
    which new tokens stand among cached ones."""
    found: dict[Value, tile.Compute] = {}
    written: dict[Value, list[Value]] = {}
    for op in family.regions[0].walk():
        if not isinstance(op, tile.Compute):
            continue
        result, *sources = [view.buffer for view in op.views()]
        if op.kernel == "gemm":
            for source in (*sources, *(w for s in sources for w in written.get(s, ()))):
                found.setdefault(source, op)
        elif op.kernel == "copy" or op.kernel.startswith("dequantise"):
            written.setdefault(result, []).extend(sources)
    streams = {
        v for op in family.regions[0].walk() if isinstance(op, task.Stream) for v in op.results
    }
    return {value: use for value, use in found.items() if value in streams}
