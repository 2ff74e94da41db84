"""Collectives that move parts of a value along an axis: gather, scatter, all-gather and their kin.

Parts travel around the ring of ranks, one message to the next rank at a time, in a buffer that has
a place for the part of each rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import Index, View, Whole
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place, point, window
from meshc.support.diagnostics import fail

COMBINE = {"sum": "add", "max": "max"}


@dataclass(frozen=True)
class Parts:
    """A buffer with the parts of all ranks of ``axis`` side by side in one of its dims, of the rows
    that a run has if it has ``rows``."""

    emitter: Emitter
    axis: str
    buffer: Value
    position: int
    block: int
    rows: bool = False

    @property
    def size(self) -> int:
        """Number of parts."""
        return self.emitter.mesh.size(self.axis)

    @property
    def rank(self) -> Expr:
        """Which part is the core's own."""
        return self.emitter.index_of(self.axis)

    @property
    def lead(self) -> tuple[Index, ...]:
        """Indices of the dims before that of the parts."""
        if not self.rows:
            return (Whole(),) * self.position
        return (window(0, self.emitter.rows), *(Whole(),) * (self.position - 1))

    def part(self, number: Expr) -> View:
        """The part of a rank."""
        return View(self.buffer, (*self.lead, window(number * self.block, self.block)))

    def first(self, extent: int) -> View:
        """The first ``extent`` elements of all parts, without padding."""
        return View(self.buffer, (*self.lead, window(0, extent)))

    def rest(self, extent: int) -> View:
        """The padding behind ``extent`` elements."""
        behind = window(extent, self.size * self.block - extent)
        return View(self.buffer, (*self.lead, behind))

    def collect(self) -> None:
        """Parts of higher ranks pass through lower ones to rank 0."""
        emitter, last = self.emitter, self.size - 1
        channel = rings.ring(emitter, self.axis)
        with emitter.loop("t", last) as t:
            gives = Cond.ge(self.rank, 1) & Cond.le(self.rank + t, last)
            sent = emitter.send(channel, self.part(self.rank + t), when=gives)
            takes = Cond.le(self.rank + t, last - 1)
            got = emitter.recv(channel, self.part(self.rank + t + 1), when=takes)
            emitter.wait(sent, got)

    def deal(self) -> None:
        """Rank 0 sends the parts of others, the furthest first; each keeps its own, the last."""
        emitter, last = self.emitter, self.size - 1
        channel = rings.ring(emitter, self.axis, 1)
        with emitter.loop("t", last) as t:
            gives = Cond.ge(t, self.rank) & Cond.le(self.rank, last - 1)
            sent = emitter.send(channel, self.part(self.rank + last - t), when=gives)
            takes = Cond.ge(self.rank, 1) & Cond.ge(t, self.rank - 1)
            got = emitter.recv(channel, self.part(self.rank + (last - 1) - t), when=takes)
            emitter.wait(sent, got)

    def circulate(self, start: int, combine: str = "store") -> None:
        """Each part goes once around the ring; the core begins with the part of rank + start."""
        emitter = self.emitter
        channel = rings.ring(emitter, self.axis)
        with emitter.loop("t", self.size - 1) as t:
            sent = emitter.send(channel, self.part((self.rank + start + t) % self.size))
            into = self.part((self.rank + start + 1 + t) % self.size)
            emitter.wait(sent, emitter.recv(channel, into, combine=combine))


def at_roots(emitter: Emitter, op: mesh.Collective) -> Cond:
    """Where the operand is, as far as other axes go: a collective of roots is theirs alone."""
    layout = tensor_type(op.operands[0]).layout
    axes = [a for a in (layout.roots if layout else ()) if a != op.axis]
    return Cond.all(Cond.eq(emitter.index_of(axis), 0) for axis in axes)


def parts_for(emitter: Emitter, op: mesh.Collective, split: Value, dtype: DType) -> Parts:
    """A new buffer for the parts of ``split``, the value of the op that lies over the axis."""
    kind = tensor_type(split)
    rows = emitter.has_rows(kind)
    if rows and op.along == emitter.held_first:
        fail("unsupported-op", f"{op.NAME} of rows of tokens or requests", op.span)
    shape = [*((emitter.row_room,) if rows else ()), *emitter.local_shape(kind)]
    position = emitter.held_dims(kind).index(op.along)
    block = shape[position]
    shape[position] *= emitter.mesh.size(op.axis)
    buffer = emitter.buffer(f"{op.result.name}_parts", shape, dtype)
    return Parts(emitter, op.axis, buffer, position, block, rows)


def spread(emitter: Emitter, op: mesh.Gather | mesh.AllGather, source: Place) -> Parts:
    """Own parts in their places, then those of others, on rank 0 or everywhere."""
    value = op.tensors()[0]
    parts = parts_for(emitter, op, value, tensor_type(value).dtype)
    with emitter.under(at_roots(emitter, op)):
        emitter.compute("copy", parts.part(parts.rank), emitter.view(source))
        if parts.size > 1 and isinstance(op, mesh.Gather):
            parts.collect()
        elif parts.size > 1:
            parts.circulate(0)
    return parts


def divide(emitter: Emitter, op: mesh.Scatter | mesh.ReduceScatter, source: Place) -> Parts:
    """A core's part of what rank 0 has, or of the sum of what all have."""
    value = op.tensors()[0]
    parts = parts_for(emitter, op, op.result, tensor_type(value).dtype)
    extent = emitter.source.dims[op.along]
    holds = at_roots(emitter, op)
    if isinstance(op, mesh.Scatter):
        holds &= Cond.eq(parts.rank, 0)
    with emitter.under(holds):
        if extent < parts.size * parts.block:
            emitter.compute("fill", parts.rest(extent), value=0.0)
        emitter.compute("copy", parts.first(extent), emitter.view(source))
    with emitter.under(at_roots(emitter, op)):
        if parts.size > 1 and isinstance(op, mesh.Scatter):
            parts.deal()
        elif parts.size > 1 and isinstance(op, mesh.ReduceScatter):
            parts.circulate(1, COMBINE[op.reduce])
    return parts


def shift(emitter: Emitter, op: mesh.Shift, source: Place, target: Place) -> None:
    """The value moves ``by`` ranks, the shorter way around the ring."""
    size = emitter.mesh.size(op.axis)
    if emitter.source.dims[op.along] % size:
        fail(
            "uneven-shift",
            f"dim {op.along} has {emitter.source.dims[op.along]} elements on {size} cores: their "
            "parts differ in length, so they cannot change places",
            op.span,
            help=f"use an extent that {size} divides",
        )
    steps = op.by % size
    with emitter.under(at_roots(emitter, op)):
        if steps == 0:
            emitter.compute("copy", emitter.view(target), emitter.view(source))
            return
        way = -1 if 2 * steps <= size else 1
        steps = steps if way < 0 else size - steps
        channel = rings.ring(emitter, op.axis, way)
        if steps == 1:
            sent = emitter.send(channel, emitter.view(source))
            emitter.wait(sent, emitter.recv(channel, emitter.view(target)))
            return
        shape = emitter.local_shape(tensor_type(op.result))
        slots = emitter.buffer(f"{op.result.name}_slots", (2, *shape), tensor_type(op.result).dtype)
        emitter.compute("copy", View(slots, (point(0),)), emitter.view(source))
        with emitter.loop("t", steps) as t:
            sent = emitter.send(channel, View(slots, (point(t % 2),)))
            got = emitter.recv(channel, View(slots, (point((t + 1) % 2),)))
            emitter.wait(sent, got)
        emitter.compute("copy", emitter.view(target), View(slots, (point(steps % 2),)))
