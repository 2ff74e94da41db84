"""Walks a mesh-level function and expands op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir import functions
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Function, Param, Port
from meshc.ir.ops import mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand.contractions import Contractions
from meshc.passes.tile.expand.distributed import Distributed
from meshc.passes.tile.expand.emitter import Place
from meshc.passes.tile.expand.handing import Handing
from meshc.passes.tile.expand.packing import LaneMap
from meshc.passes.tile.expand.routing import Routing
from meshc.passes.tile.expand.weights import Stack
from meshc.support.diagnostics import fail

_Move = tuple[Place, Place]
"""A place and the one whose content it takes."""


class FunctionExpander(Handing, Distributed, Contractions, Routing):
    """Gives every mesh value a place and emits the statements that compute it."""

    def expand(self, function: Function) -> Block:
        """The statements of the whole phase. Raises ``unsupported-op`` for an op that has none."""
        for op in function.body.walk():
            self.handler(op)  # refused in front of what else may be wrong
        for param in function.params:
            if param.role == "weight":
                self.weights.stacks[param.value] = Stack(param.value, None, None)
            elif param.role == "in":
                self.input(param, function.body)
        self.block(function.body)
        return self.emitter.block

    def input(self, param: Param, body: Block) -> None:
        """A tensor that the host provides. What only one product reads is placed as that wants
        it; what has no rows of tokens may be placed at will."""
        kind = tensor_type(param.value)
        rows = self.module.row_dim
        users = [op for op in body.walk() if param.value in op.operands]
        matrix = bool(users) and all(is_matrix(op, param.value) for op in users)
        if rows not in kind.dims if rows else matrix:
            self.weights.stacks[param.value] = Stack(param.value, None, None, role="in")
            return
        if len(users) == 1 and users[0] in body.ops and self.takes_inputs(users[0], param.value):
            self.direct[param.value] = param
            return
        place = self.settle(param.value, self.emitter.new_place(param.value.name, kind, "in"))
        roots = (kind.layout or Layout()).roots
        holds = [Cond.eq(self.emitter.index_of(axis), 0) for axis in roots]
        if self.emitter.mesh.regions > 1:
            holds.append(Cond.eq(Expr.var(self.emitter.mesh.outer), 0))
        where = Cond.all(holds) if holds else None
        self.io_port(param.value.name, "in", kind, place, where)

    def takes_inputs(self, op: Op, value: Value) -> bool:
        """Whether ``op`` declares the port of its left operand ``value`` itself."""
        return isinstance(op, mesh.Gemm) and op.operands[0] is value

    def io_port(
        self, name: str, direction: str, kind: TensorType, place: Place, where: Cond | None
    ) -> None:
        """Port of an activation: rows and lanes as its layout says."""
        lanes: list[str] = []
        lane_map = LaneMap(self.emitter)
        for dim in self.emitter.held_dims(kind):
            lanes.append(f"i_{dim.lower()}")
            lane_map.add([dim], kind, Expr.var(lanes[-1]))
        lanes = lanes or ["i"]  # a single element
        element = tuple(lane_map.elements.get(d, Expr.const(0)) for d in kind.dims)
        self.emitter.port(
            Port(
                name,
                "in" if direction == "in" else "out",
                TensorType(kind.dtype, kind.dims),
                place.buffer,
                tuple(lanes),
                (),
                element,
                where,
            )
        )

    def block(self, block: Block) -> None:
        """Expand the ops of ``block`` in order."""
        self.join(block)
        for op in block.ops:
            outer, self.emitter.span = self.emitter.span, op.span
            self.handler(op)(op)
            self.emitter.span = outer

    def join(self, block: Block) -> None:
        """Values that travel in one message, or come from one product, share a buffer: those of a
        message may be more than those of the product that it completes. What is computed outside of
        the block lies somewhere already and stays there."""
        messages = [op for op in block.ops if isinstance(op, mesh.AllReduce)]
        products = [op for op in block.ops if isinstance(op, (mesh.Gemv, mesh.Gemm))]
        joint = [op.tensors() for op in messages] + [op.results for op in products]
        outside = set(self.places)
        for values in joint:
            new = any(v not in self.places for v in values)
            if len(values) > 1 and new and outside.isdisjoint(values):
                self.place_jointly(values)

    def place_jointly(self, values: Sequence[Value]) -> None:
        """One buffer for ``values``."""
        name = "_".join(v.name for v in values)
        kinds = [tensor_type(v) for v in values]
        for value, place in zip(values, self.emitter.joint_places(name, kinds), strict=True):
            self.settle(value, place)

    def handler(self, op: Op) -> Callable[[Op], None]:
        """The method named after the op's mnemonic; functions of elements share one."""
        if isinstance(op, functions.Function):
            return self.function
        name = op.NAME.partition(".")[2].replace("return", "returned").replace("yield", "yielded")
        method = getattr(self, name, None)
        if method is None:
            fail("unsupported-op", f"{op.NAME} has no expansion", op.span)
        return cast(Callable[[Op], None], method)

    def repeat(self, op: mesh.Repeat) -> None:
        """The loop over layers; over several regions each runs its share, one after the other."""
        emitter = self.emitter
        layers = self.module.dims[op.dim]
        regions = emitter.mesh.regions
        share = ceil_div(layers, regions)
        (body,) = op.regions
        carried = self.carried_places(op)
        if op.rounds and regions > 1:
            fail(
                "unsupported-op",
                f"a run over some of the layers of {op.dim}, which lie in {regions} regions",
                op.span,
                help="give the layers one region",
            )
        if regions == 1:
            self.layer_loop(op, body, share, carried, None)
        else:
            region = Expr.var(emitter.mesh.outer)
            with emitter.sweep(region, regions):
                given = [
                    (place, tensor_type(arg))
                    for place, arg in zip(carried, body.args, strict=False)
                ]
                for place, kind in given:
                    self.take_over(place, kind)
                self.layer_loop(op, body, share, carried, layers)
                for place, kind in given:
                    self.hand_on(place, kind)
            emitter.guards.append(Cond.eq(region, regions - 1))
        for value, place in zip(op.results, carried, strict=False):
            self.settle(value, place)

    def carried_places(self, op: mesh.Repeat) -> list[Place]:
        """Where the values that a loop carries lie: where they begin if the loop leaves them alone
        or nothing else needs that place, else in a copy."""
        (body,) = op.regions
        ends = body.ops[-1].operands
        starts = op.tensors()[: op.carried]
        found = [
            self.place_of(v) if end is arg else None
            for v, end, arg in zip(starts, ends, body.args, strict=False)
        ]
        for position, value in enumerate(starts):
            place = self.place_of(value)
            if found[position] is None:
                taken = any(place.overlaps(other) for other in found if other)
                if taken or not self.is_free(place, op):
                    copy = self.emitter.place_like(place, value.name, self.dtype(value))
                    self.emitter.compute("copy", self.view(copy), self.view(place))
                    place = copy
                found[position] = place
        return [place for place in found if place]

    def layer_loop(
        self, op: mesh.Repeat, body: Block, share: int, carried: Sequence[Place], layers: int | None
    ) -> None:
        """The body for each of a region's layers, of which the last regions may have fewer."""
        emitter = self.emitter
        first, count = map(Expr.var, op.rounds) if op.rounds else (Expr.const(0), Expr.const(share))
        with emitter.loop("layer", count) as counted:
            layer = counted + first
            exists = Cond.true()
            stride = 0
            if layers is not None:
                stride = share
            if layers is not None and layers < share * emitter.mesh.regions:
                exists = Cond.lt(layer + Expr.var(emitter.mesh.outer) * share, layers)
            outer, self.layers = self.layers, (share, layer)
            outer_carried, self.carried = self.carried, list(body.args[: op.carried])
            for position, (arg, operand) in enumerate(zip(body.args, op.operands, strict=True)):
                if position < op.carried:
                    self.settle(arg, carried[position])
                elif isinstance(operand, Value) and operand in self.weights.stacks:
                    param = self.weights.stacks[operand].param
                    self.weights.stacks[arg] = Stack(param, share, layer, stride)
            if exists.is_true:
                self.block(body)
            else:  # one test for all statements of a layer
                with emitter.sweep(Expr.const(0), 1, exists):
                    self.block(body)
            self.layers, self.carried = outer, outer_carried

    def yielded(self, op: mesh.Yield) -> None:
        """Carried values end in the buffers they began in, all at once: none is overwritten that
        another one still takes its new content from."""
        pending = [
            (self.places[arg], self.place_of(cast(Value, operand)))
            for arg, operand in zip(self.carried, op.operands, strict=False)
        ]
        pending = [(target, source) for target, source in pending if target != source]
        while pending:
            ready = next((m for m in pending if not _read_by_others(m, pending)), None)
            if ready is not None:
                pending.remove(ready)
                self.emitter.compute("copy", *map(self.view, ready))
            else:
                pending = self.set_aside(pending[0][0], pending)

    def set_aside(self, place: Place, pending: Sequence[_Move]) -> list[_Move]:
        """Break a circle of moves: those that read ``place`` read a copy of it instead."""
        dtype = View(place.buffer).buffer_type.dtype
        copy = self.emitter.place_like(place, "aside", dtype)
        self.emitter.compute("copy", self.view(copy), self.view(place))
        return [(to, copy if source.overlaps(place) else source) for to, source in pending]

    def returned(self, op: mesh.Return) -> None:
        """Results become out-ports in the order in which they are returned, each of a name and a
        buffer of its own; caches stay where they are."""
        declared = {p.name: p.buffer for p in self.emitter.module.ports if p.direction == "out"}
        shared, names = set(declared.values()), []
        for value in op.tensors():
            if value in self.places or value in self.weights.stacks:
                names.append(self.output(op, value, shared))
            elif value.name in declared:  # by the product that computes it
                names.append(value.name)
        self.emitter.order_outputs(names)

    def output(self, op: mesh.Return, value: Value, shared: set[Value]) -> str:
        """Declare the out-port of a result in a buffer that is none of ``shared``, and so becomes
        one of them; the name of the port."""
        kind, place = tensor_type(value), self.place_of(value)
        if place.offset is not None or place.prefix or place.buffer in shared:
            copy = self.emitter.new_place(value.name, kind)
            self.emitter.compute("copy", self.view(copy), self.view(place))
            place = copy
        shared.add(place.buffer)
        self.emitter.rename(place.buffer, value.name)
        self.mark_output(place)
        where = Cond.all([*self.emitter.guards, *self.first_copy(kind)])
        name = self.output_name("logits" if self.is_logits(op, value) else value.name)
        self.io_port(name, "out", kind, place, None if where.is_true else where)
        return name

    def output_name(self, wanted: str) -> str:
        """``wanted``, or that with a number where another port has the name."""
        names = {port.name for port in self.emitter.module.ports}
        found, count = wanted, 0
        while found in names:
            count += 1
            found = f"{wanted}_{count}"
        return found

    def is_logits(self, op: mesh.Return, value: Value) -> bool:
        """Whether ``value`` is what the host samples from: the first result of a decode step."""
        return value is op.operands[0] and self.module.option("phase", "") == "decode"

    def mark_output(self, place: Place) -> None:
        """Outputs keep their memory to the end."""
        self.emitter.mark(place.buffer, "out")

    def first_copy(self, kind: TensorType) -> list[Cond]:
        """Conditions that hold for the first core of each group of cores with the same lanes."""
        used = {s.axis for s in (kind.layout.splits if kind.layout else ())}
        mesh, free = self.emitter.mesh, []
        for axis in (mesh.parts[name] for name in mesh.plane):
            factors = [factor.name for factor in axis.factors]
            if used.isdisjoint((axis.name, *factors)):
                free.append(axis.name)
            elif axis.name not in used:
                free += [name for name in factors if name not in used]
        copied = [s for s in (kind.layout.splits if kind.layout else ()) if s.copies > 1]
        return [Cond.eq(self.emitter.index_of(axis), 0) for axis in free] + [
            Cond.eq(self.emitter.index_of(split.axis) % split.copies, 0) for split in copied
        ]


def _read_by_others(move: _Move, pending: Sequence[_Move]) -> bool:
    """Whether another pending move reads what ``move`` overwrites."""
    return any(other is not move and other[1].overlaps(move[0]) for other in pending)


def is_matrix(op: Op, value: Value) -> bool:
    """Whether ``value`` is a right operand of the product ``op``, and only that."""
    products = (mesh.Gemv, mesh.Gemm, mesh.GemmT)
    if isinstance(op, mesh.ExpertGemv):
        return value not in op.operands[:2]
    return isinstance(op, products) and value is not op.operands[0]
