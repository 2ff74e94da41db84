"""Expands what goes to experts and back: rows that travel to the cores of their experts, products
of the rows that an expert is sent, and their weighted sums."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh
from meshc.ir.values import Value
from meshc.ir.views import Index, View, Whole
from meshc.passes.tile.expand import collectives, rings
from meshc.passes.tile.expand.emitter import Emitter, expr, window
from meshc.passes.tile.expand.moves import Parts
from meshc.passes.tile.expand.pointwise import Pointwise
from meshc.support.diagnostics import fail


class Routing(Pointwise):
    """A method for each op, named after its mnemonic."""

    def dispatch(self, op: mesh.Dispatch) -> None:
        """Rows and gates travel where they lie over the axis; then each core keeps the rows that
        are sent to its experts."""
        x, gates = (cast(Value, operand) for operand in op.operands)
        sent, routes = op.results
        row_dims, travels = tensor_type(gates).dims[:-1], self.emitter.mesh.size(op.axis) > 1
        if travels and op.along in row_dims:
            rows = self.rows_of_all(op, x, gates, routes)
        else:
            if travels:
                self.settle(routes, self.emitter.new_place(routes.name, tensor_type(routes)))
                shift = self.emitter.index_of(op.axis) * self.experts_of(op)
                places = (self.places[routes], self.place_of(gates))
                self.select(op, gates, op.dim, shift, places)
            else:
                self.settle(routes, self.place_of(gates))
            rows = self.lanes_of_all(op, x) if travels and op.along else self.by_lanes(x, row_dims)
        self.settle(sent, self.emitter.new_place(sent.name, tensor_type(sent)))
        self.emitter.compute(
            "dispatch", self.by_lanes(sent, (*row_dims, op.dim)), rows, self.view_of(routes)
        )

    def expert_gemv(self, op: mesh.ExpertGemv) -> None:
        """One product for each right operand, whose buffer has a matrix for each expert."""
        sent, routes, *rights = (cast(Value, operand) for operand in op.operands)
        width = prod(self.extent(sent, dim) for dim in op.contract)
        for right, result in zip(rights, op.results, strict=True):
            if right not in self.weights.stacks:
                fail(
                    "unsupported-op",
                    f"the matrices {right} of {op.NAME} are neither a weight nor an input",
                    op.span,
                )
            if result not in self.places:
                self.settle(result, self.emitter.new_place(result.name, tensor_type(result)))
            matrix = self.weights.gemv([right], op.contract, width)
            experts = self.extent(right, op.dim)
            columns = self.weights.width(right, op.contract) // experts
            shape = (expr(width), expr(experts), expr(columns))
            experts_first = tensor_type(routes).dims
            self.emitter.compute(
                "expert_gemm",
                self.by_lanes(result, experts_first),
                self.by_lanes(sent, experts_first),
                View(matrix.buffer, matrix.indices, shape),
                self.view_of(routes),
            )

    def combine(self, op: mesh.Combine) -> None:
        """The sum over a core's own experts, in a buffer of its own."""
        values, routes = (cast(Value, operand) for operand in op.operands)
        dims = tensor_type(routes).dims
        self.result_place(op)
        self.emitter.compute(
            "combine",
            self.by_lanes(op.result, dims[:-1]),
            self.by_lanes(values, dims),
            self.view_of(routes),
        )

    # --- views

    def extent(self, value: Value, dim: str) -> int:
        """Lanes of ``dim`` that a core holds of ``value``."""
        kind = tensor_type(value)
        return dict(zip(kind.dims, kind.local_shape(self.module.dims), strict=True))[dim]

    def experts_of(self, op: mesh.Dispatch) -> int:
        """Experts of each core, those that only fill up included."""
        return self.extent(op.results[1], op.dim)

    def view_of(self, value: Value) -> View:
        """The value as it lies."""
        return self.emitter.view(self.place_of(value))

    def by_lanes(self, value: Value, lead: tuple[str, ...]) -> View:
        """The value with the dims behind ``lead`` as one."""
        place, kind = self.place_of(value), tensor_type(value)
        held = [d for d in self.emitter.held_dims(kind) if d != self.emitter.held_first]
        first = [self.extent(value, d) for d in held if d in lead]
        rest = prod(self.extent(value, d) for d in held if d not in lead)
        return self.emitter.view(place, (*first, rest))

    # --- what travels

    def lanes_of_all(self, op: mesh.Dispatch, x: Value) -> View:
        """All lanes of a core's rows."""
        emitter, kind = self.emitter, tensor_type(x)
        shape = [
            *((emitter.row_room,) if emitter.has_rows(kind) else ()),
            *emitter.local_shape(kind),
        ]
        position = emitter.held_dims(kind).index(op.along)
        block, rows = shape[position], emitter.has_rows(kind)
        name = f"{op.results[0].name}_parts"
        shape[position] *= emitter.mesh.size(op.axis)
        parts = Parts(
            emitter, op.axis, emitter.buffer(name, shape, kind.dtype), position, block, rows
        )
        own = self.view_of(x) if op.algo == "multicast" else None
        if own is None:
            emitter.compute("copy", parts.part(parts.rank), self.view_of(x))
        _travel(parts, op.algo, own)
        whole = parts.first(self.module.dims[op.along])
        lead = {*tensor_type(op.operands[1]).dims[:-1]}
        held = emitter.held_dims(kind)
        extents = whole.shape()
        first = [e for d, e in zip(held, extents, strict=True) if d in lead]
        behind = [e for d, e in zip(held, extents, strict=True) if d not in lead]
        if len(behind) == 1:
            return whole
        rest = prod(e.constant for e in behind)
        return View(whole.buffer, whole.indices, (*first, expr(rest)))

    def rows_of_all(self, op: mesh.Dispatch, x: Value, gates: Value, routes: Value) -> View:
        """Rows of all cores, and into ``routes`` their gates for the core's own experts. A row and
        its gates are one message."""
        emitter, kind = self.emitter, tensor_type(gates)
        if op.along == emitter.held_first:
            fail(
                "unsupported-op",
                f"{op.NAME} of rows {op.along} that lie over {op.axis}, of which the run says how "
                "many there are",
                op.span,
                help="let the rows of experts be on every core of the axis",
            )
        experts = self.experts_of(op) * emitter.mesh.size(op.axis)
        held = [d for d in emitter.held_dims(kind) if d != op.dim]
        shape = [self.extent(gates, d) for d in held]
        lanes = prod(self.extent(x, d) for d in emitter.held_dims(tensor_type(x)) if d not in held)
        width, position = lanes + experts, held.index(op.along)
        name, dtype = f"{op.results[0].name}_rows", kind.dtype
        turns = op.algo == "multicast"
        own = View(emitter.buffer(f"{name}_own", (*shape, width), dtype)) if turns else None
        block = shape[position]
        shape[position] *= emitter.mesh.size(op.axis)
        parts = Parts(
            emitter, op.axis, emitter.buffer(name, (*shape, width), dtype), position, block
        )
        mine = own or parts.part(parts.rank)
        if experts > self.module.dims[op.dim]:
            known = lanes + self.module.dims[op.dim]
            emitter.compute("fill", _columns(mine, known, width - known), value=0.0)
        emitter.compute("copy", _columns(mine, 0, lanes), self.by_lanes(x, tuple(held)))
        emitter.compute(
            "copy", _columns(mine, lanes, self.module.dims[op.dim]), self.view_of(gates)
        )
        _travel(parts, op.algo, own)
        whole = parts.first(self.module.dims[op.along])
        place = self.settle(routes, emitter.new_place(routes.name, tensor_type(routes)))
        first = emitter.index_of(op.axis) * self.experts_of(op) + lanes
        emitter.compute("copy", emitter.view(place), _columns(whole, first, self.experts_of(op)))
        return _columns(whole, 0, lanes)


def _columns(view: View, start: Expr | int, count: int) -> View:
    """So many elements of the last dim of ``view``, which has an index for each other dim that it
    takes a part of."""
    rank = len(view.buffer_type.shape)
    indices: list[Index] = [*view.indices, *(Whole(),) * (rank - len(view.indices))]
    return replace(view, indices=(*indices[:-1], window(start, count)))


def _travel(parts: Parts, algo: str, own: View | None) -> None:
    """The parts of all cores come to every one of them. ``own`` is what a core multicasts; by the
    other ways its own part is in place."""
    if own is not None:
        _in_turns(parts, own)
    elif algo == "ring":
        parts.circulate(0)
    else:
        parts.collect()
        collectives.broadcast(parts.emitter, parts.axis, View(parts.buffer))


def _in_turns(parts: Parts, own: View) -> None:
    """Each core of the line multicasts its part when its turn comes; the core itself hears it
    too."""
    emitter: Emitter = parts.emitter
    up = rings.in_turn(emitter, parts.axis, 1, 1)
    down = rings.in_turn(emitter, parts.axis, -1, 1)
    here = Expr.var(parts.axis)
    with emitter.loop("t", parts.size) as turn:
        mine = Cond.eq(here, turn)
        sent = [
            emitter.send(up, own, when=mine & Cond.le(here, parts.size - 2)),
            emitter.send(down, own, when=mine),
        ]
        got = [
            emitter.recv(up, parts.part(turn), when=Cond.gt(here, turn)),
            emitter.recv(down, parts.part(turn), when=Cond.le(here, turn)),
        ]
        emitter.wait(*sent, *got)
