"""Families that fold tiles of cached tokens: attention, as the library has it or statement by
statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meshc.backends.cuda.tasks.cached_tiles import CachedTiles
from meshc.backends.cuda.tasks.caches import with_new
from meshc.backends.cuda.tasks.families import Placed, folds, phases_around, phases_of
from meshc.backends.cuda.tasks.group_attention import GroupAttention
from meshc.backends.cuda.tasks.latent_attention import LatentAttention, latent_shape
from meshc.backends.cuda.tasks.library_attention import library_shape
from meshc.backends.cuda.tasks.neighbours import Neighbours
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.backends.cuda.tasks.statements import Locals, Statements, Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import Tile, taken_rows
from meshc.ir.module import Module
from meshc.ir.ops import tile


@dataclass
class Attention:
    """A family that attends, perhaps ``alone`` in its phase, which is ``paced`` where tiles are
    brought in front of a meeting; ``ranges`` are those of names around it."""

    family: Placed
    storage: Storage
    locals: Locals
    ranges: dict[str, tuple[int, int]]
    alone: bool = False
    paced: bool = False

    def __post_init__(self) -> None:
        self.tiles = CachedTiles(self.family, self.storage, self.ranges, self.paced)
        self.routine = self._routine()
        if self.routine is not None:
            record = self.tiles.record.view.buffer
            self.storage.doubling |= {record} if self.storage.role(record) == "" else set()
        if self.alone and self.routine is not None:
            self.routine.attend_at_once()

    @property
    def neighbours(self) -> Neighbours:
        """Tokens whose tasks are computed at once."""
        return self.tiles.neighbours

    @property
    def renews(self) -> bool:
        """Whether threads renew their number behind loops that need nearly all of a thread's
        registers."""
        return isinstance(self.routine, LatentAttention)

    def _routine(self) -> GroupAttention | LatentAttention | None:
        """What the library has for it, if anything."""
        tiles = self.tiles
        grouped = library_shape(self.family, tiles.loop, tiles.values)
        if grouped is not None:
            return GroupAttention(tiles, grouped, self.locals)
        latents = latent_shape(tiles)
        return None if latents is None else LatentAttention(tiles, latents, self.locals)

    @property
    def parts(self) -> list[tuple[str, int, str]]:
        """What its routine works in, beside values of tasks: name, bytes and note."""
        return [] if self.routine is None else self.routine.parts

    def bring(self, text: Text) -> None:
        """Write what the whole warp does: it brings the tiles of the block's tasks."""
        self.tiles.bring(text)

    def compute(self, text: Text) -> None:
        """Write what the workers do: the block's tasks."""
        text.add("float* const locals = (float*)(arena + ATTENDING);")
        with self.neighbours.each(text):
            if self.routine is None:
                self._by_statements(text)
            else:
                self.routine.compute(text)

    def _by_statements(self, text: Text) -> None:
        values = self.tiles.values
        values.arrays.clear()
        values.cached = frozenset(with_new(self.tiles.loop).values())
        values.taken = taken_rows(self.family.ops)

        def loop(op: tile.For, body: Callable[[], None]) -> None:
            if op is not self.tiles.loop:
                statements.rounds(op, body)
                return
            with self.tiles.rounds(text, release=True):
                self._tiles(text)
                body()
            values.tiles.clear()

        statements = Statements(values, text, self.locals, loop=loop)
        self.locals.restart()
        statements.add(self.family.ops)

    def _tiles(self, text: Text) -> None:
        """What came into the ring, by name."""
        text.add("const unsigned char* const tile = ring.ready(item);")
        for op in self.tiles.streams:
            name = fresh(self.storage.taken, op.result.name)
            cache = self.storage.cache(op.view.buffer)
            kind = "mc::u8" if cache.coded else "T"
            text.add(f"const {kind}* const {name} = (const {kind}*)(tile + {self.tiles.at(op)});")
            assert op.below is not None
            first = self.tiles.first(op)
            self.tiles.values.tiles[op.result] = Tile(
                name,
                cache.lanes,
                cache.first,
                first,
                op.below,
                partial(self.storage.rows.lane, op.view.buffer),
                cache.coded,
            )


def attends_by_statements(module: Module, graph: Module) -> tuple[str, ...]:
    """The families of a placed ``module``, made of ``graph``, whose attention the library has no
    routine for."""
    storage = Storage(module, graph, page=1)
    return tuple(
        family.op.name
        for ranges, phase in phases_around(phases_of(module))
        for family in phase.families
        if folds(family) and Attention(family, storage, Locals(), ranges).routine is None
    )
