"""Expands collectives and shifts of values between cores."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh
from meshc.ir.values import Value
from meshc.passes.tile.expand import collectives, moves
from meshc.passes.tile.expand.emitter import Place
from meshc.passes.tile.expand.values import Values


class Distributed(Values):
    """A method for each op, named after its mnemonic."""

    def all_reduce(self, op: mesh.AllReduce) -> None:
        """In place; several operands lie side by side and travel together."""
        places = self.overwritten(op, op.tensors())
        lanes = sum(p.width for p in places)
        first = places[0]
        if len(places) > 1:
            joined = replace(first, shape=(lanes,))
            view = self.emitter.view(joined)
        else:
            view = self.view(first)
        if self.emitter.mesh.size(op.axis) > 1:
            with self.emitter.under(moves.at_roots(self.emitter, op)):
                if op.reduce == "softmax":
                    self.merge(op, joined, places[-1].width)
                else:
                    collectives.all_reduce(self.emitter, op, view, lanes, first.rows)
        for result, place in zip(op.results, places, strict=True):
            self.settle(result, place)

    def merge(self, op: mesh.AllReduce, place: Place, count: int) -> None:
        """The ``count`` softmaxes at ``place`` with those of all cores."""
        dtype = self.dtype(op.tensors()[0])
        arrived = self.emitter.place_like(place, f"{op.results[0].name}_arrived", dtype)
        collectives.merge(self.emitter, op, self.view(place), self.view(arrived), count)

    def reduce(self, op: mesh.Reduce) -> None:
        """In place on the first core of the axis."""
        for value, result in zip(op.tensors(), op.results, strict=True):
            (place,) = self.overwritten(op, [value])
            if self.emitter.mesh.size(op.axis) > 1:
                with self.emitter.under(moves.at_roots(self.emitter, op)):
                    collectives.reduce(self.emitter, op, self.view(place))
            self.settle(result, place)

    def broadcast(self, op: mesh.Broadcast) -> None:
        """In place: only the first core of the axis had anything there."""
        (place,) = self.overwritten(op, op.tensors())
        if self.emitter.mesh.size(op.axis) > 1:
            with self.emitter.under(moves.at_roots(self.emitter, op)):
                collectives.broadcast(self.emitter, op.axis, self.view(place))
        self.settle(op.result, place)

    def gather(self, op: mesh.Gather | mesh.AllGather) -> None:
        """The parts lie side by side; where they are padded, a copy without the padding."""
        parts = moves.spread(self.emitter, op, self.place_of(cast(Value, op.operands[0])))
        extent = self.module.dims[op.dim]
        if extent == parts.size * parts.block:
            shape = self.emitter.local_shape(tensor_type(op.result))
            self.settle(op.result, Place(parts.buffer, shape, rows=parts.rows))
        else:
            target = self.result_place(op)
            with self.emitter.under(moves.at_roots(self.emitter, op)):
                self.emitter.compute("copy", self.view(target), parts.first(extent))

    def all_gather(self, op: mesh.AllGather) -> None:
        """As :meth:`gather`, on every core."""
        self.gather(op)

    def scatter(self, op: mesh.Scatter | mesh.ReduceScatter) -> None:
        """The core's own part, in a buffer of its own."""
        parts = moves.divide(self.emitter, op, self.place_of(cast(Value, op.operands[0])))
        target = self.result_place(op)
        with self.emitter.under(moves.at_roots(self.emitter, op)):
            self.emitter.compute("copy", self.view(target), parts.part(parts.rank))

    def reduce_scatter(self, op: mesh.ReduceScatter) -> None:
        """As :meth:`scatter`, of what was summed before."""
        self.scatter(op)

    def shift(self, op: mesh.Shift) -> None:
        """To a buffer of its own: what leaves and what comes are underway at once."""
        source = self.place_of(cast(Value, op.operands[0]))
        moves.shift(self.emitter, op, source, self.result_place(op))
