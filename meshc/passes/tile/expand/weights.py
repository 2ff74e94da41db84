"""Buffers of constants: one per product, the matrices of several results side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import tensor_type
from meshc.ir.module import Port, Role
from meshc.ir.rows import Paired
from meshc.ir.types import Split, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View
from meshc.passes.tile.expand.chunks import Chunks
from meshc.passes.tile.expand.emitter import Emitter, Place
from meshc.passes.tile.expand.packing import LaneMap


@dataclass(frozen=True)
class Stack:
    """A parameter that may be placed at will: its tensor and, inside a loop over layers, how layers
    are indexed. Its ``role`` is that of its buffers: ``weight``, or ``in`` of an input of main."""

    param: Value
    layers: int | None
    layer: Expr | None
    stride: int = 0
    role: Role = "weight"


class Weights:
    """Declares weight buffers and their ports."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.stacks: dict[Value, Stack] = {}

    def prefix(self, value: Value) -> tuple[Index, ...]:
        """Leading index of a weight buffer: the layer, where there are several."""
        layer = self.stacks[value].layer
        return (Point(layer),) if layer is not None else ()

    def paired(self, value: Value) -> Paired | None:
        """The lanes of this weight that canonicalize reorders into pairs."""
        return self.emitter.source.paired.get(self.stacks[value].param.name)

    def lanes(self, value: Value) -> Place:
        """A constant that is no matrix of a product: the lanes that its layout gives a core."""
        kind = tensor_type(value)
        stack = self.stacks[value]
        layers = 0 if stack.layers is None else stack.layers
        name = stack.param.name
        place = self.emitter.new_place(name, kind, stack.role, layers)
        lane_map = LaneMap(self.emitter, self.paired(value))
        lanes: list[str] = []
        for dim in self.emitter.held_dims(kind):
            lanes.append(f"i{len(lanes)}")
            lane_map.add([dim], kind, Expr.var(lanes[-1]))
        self.declare(value, place.buffer, lanes or ["i"], (), lane_map)
        return replace(place, prefix=self.prefix(value))

    def gemv(self, values: Sequence[Value], contract: tuple[str, ...], rows: int) -> View:
        """``[rows, columns]``: the rows of the core's part of the vector, columns joined."""
        widths = [self.width(v, contract) for v in values]
        buffer = self._buffer(values, (rows, sum(widths)))
        for value, start, width in zip(values, _starts(widths), widths, strict=True):
            kind = tensor_type(value)
            lane_map = LaneMap(self.emitter, self.paired(value))
            lane_map.add(contract, kind, Expr.var("k"))
            self.columns(lane_map, kind, contract, start)
            inside = _between(start, width, sum(widths))
            self.declare(value, buffer, ["k", "f"], (), lane_map, inside)
        return View(buffer, self.prefix(values[0]))

    def by_head(self, value: Value, heads: str, contract: tuple[str, ...]) -> View:
        """``[heads, rows, columns]``: a matrix for each of the ``heads`` that a core has."""
        kind = tensor_type(value)
        new = tuple(d for d in kind.dims if d != heads and d not in contract)
        groups, lanes = ((heads,), contract, new), ("h", "k", "f")
        local = dict(zip(kind.dims, kind.local_shape(self.emitter.source.dims), strict=True))
        buffer = self._buffer([value], tuple(prod(local[d] for d in dims) for dims in groups))
        lane_map = LaneMap(self.emitter, self.paired(value))
        for dims, lane in zip(groups, lanes, strict=True):
            lane_map.add(dims, kind, Expr.var(lane))
        self.declare(value, buffer, lanes, (), lane_map)
        return View(buffer, self.prefix(value))

    def gemm(
        self,
        values: Sequence[Value],
        contract: tuple[str, ...],
        left: Sequence[Split],
        chunks: Chunks,
        aligned: bool,
        spare: int = 0,
        everything: Cond | None = None,
    ) -> View:
        """``[chunks, rows, columns]`` and ``spare`` chunks of room behind. If ``aligned``, chunk s
        at a core is the s-th its left operand meets; its rows are the lanes of the left
        operand's core of that chunk. With ``everything`` the buffer has all chunks, and the host
        fills the slots ``s`` where that holds."""
        emitter = self.emitter
        widths = [self.width(v, contract) for v in values]
        count = chunks.per_row + spare if everything is None else chunks.count
        buffer = self._buffer(values, (count, chunks.lanes, sum(widths)))
        slot = Expr.var("s")
        lets = chunks.lets(chunks.right(slot, aligned) if everything is None else slot)
        for value, start, width in zip(values, _starts(widths), widths, strict=True):
            kind = tensor_type(value)
            lane_map = LaneMap(emitter, self.paired(value))
            lanes = lane_map.add(contract, kind, Expr.var("lane"), chunks.parts(), left)
            self.columns(lane_map, kind, contract, start)
            inside = _between(start, width, sum(widths)) & chunks.within(lanes)
            if spare:
                inside &= Cond.lt(slot, chunks.per_row)
            if everything is not None:
                inside &= everything
            self.declare(value, buffer, ["s", "q", "f"], lets, lane_map, inside)
        return View(buffer, self.prefix(values[0]))

    def columns(
        self, lane_map: LaneMap, kind: TensorType, contract: tuple[str, ...], start: int
    ) -> None:
        """The dims that a product adds, flattened in the order of the tensor."""
        dims = [d for d in kind.dims if d not in contract]
        lane_map.add(dims, kind, Expr.var("f") - start)

    def width(self, value: Value, contract: tuple[str, ...]) -> int:
        """Columns of one weight on a core."""
        kind = tensor_type(value)
        local = dict(zip(kind.dims, kind.local_shape(self.emitter.source.dims), strict=True))
        total = 1
        for dim in kind.dims:
            total *= 1 if dim in contract else local[dim]
        return total

    def declare(
        self,
        value: Value,
        buffer: Value,
        lanes: Sequence[str],
        lets: Sequence[tuple[str, Expr]],
        lane_map: LaneMap,
        inside: Cond | None = None,
    ) -> None:
        """The port of one weight."""
        stack = self.stacks[value]
        kind = tensor_type(stack.param)
        element = [lane_map.elements.get(d, Expr.const(0)) for d in tensor_type(value).dims]
        names = list(lanes)
        more = [inside] if inside is not None else []
        if stack.layers is not None:
            names = ["layer", *names]
            layer = Expr.var("layer")
            share = (
                layer + Expr.var(self.emitter.mesh.outer) * stack.stride if stack.stride else layer
            )
            element = [share, *element]
        elif self.emitter.mesh.regions > 1:
            last = Cond.eq(Expr.var(self.emitter.mesh.outer), self.emitter.mesh.regions - 1)
            more += [guard for guard in self.emitter.guards if guard == last]
        self.emitter.port(
            Port(
                stack.param.name,
                "in",
                TensorType(kind.dtype, kind.dims),
                buffer,
                tuple(names),
                tuple(lets),
                tuple(element),
                lane_map.where(*more),
            )
        )

    def _buffer(self, values: Sequence[Value], shape: tuple[int, ...]) -> Value:
        stack = self.stacks[values[0]]
        layers = () if stack.layers is None else (stack.layers,)
        name = "_".join(self.stacks[v].param.name for v in values)
        dtype = tensor_type(values[0]).dtype
        return self.emitter.buffer(name, (*layers, *shape), dtype, stack.role)


def _starts(widths: Sequence[int]) -> list[int]:
    return [sum(widths[:i]) for i in range(len(widths))]


def _between(start: int, width: int, total: int) -> Cond:
    """Lane ``f`` is one of this weight's columns."""
    if width == total:
        return Cond.true()
    return Cond.between(start, Expr.var("f"), start + width)
