"""Forms of the loop over layers: where the values that it carries lie at both ends of its body."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from meshc.ir.core import Block, Operand
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.layouts import laid_out, on_axis
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.moves import move

_MOST_MOVED = 3
"""More carried values than these stay where they lie."""


@dataclass(frozen=True)
class Entry:
    """A way that has come to a loop, and what the loop is given on it."""

    form: str
    outer: Lowering
    operands: tuple[Value, ...]

    def inside(self, op: graph.Repeat) -> Lowering:
        """The way into the body, whose cost is that of one layer."""
        way = self.outer.fork()
        way.block, way.carried, way.cost = Block(), op.carried, way.cost * 0
        (old,) = op.regions
        for position, (arg, value) in enumerate(zip(old.args, self.operands, strict=True)):
            kind = way.type_of(value)
            dims = kind.dims if position < op.carried else kind.dims[1:]
            inner = way.value(arg.name, TensorType(kind.dtype, dims, kind.layout))
            way.env[arg] = inner
            if value in way.weights and position >= op.carried:
                way.weights.add(inner)
                way.stacks[inner] = value
            way.block.args.append(inner)
        return way

    def leave(self, way: Lowering, op: graph.Repeat) -> None:
        """Close the loop around the body that ``way`` has come through; it costs as much for each
        layer."""
        body, layers = way.block, way.problem.extents[op.dim]
        for arg in body.args:
            if way.type_of(arg).layout is None:
                way.placed[arg] = Layout()
        outer = self.outer.block
        way.block = Block(list(outer.args), list(outer.ops))
        way.carried, way.cost = self.outer.carried, self.outer.cost + way.cost * layers
        kinds = [
            way.type_of(value) if position < op.carried else _stacked(op.dim, way.type_of(value))
            for position, value in enumerate(body.ops[-1].tensors())
        ]
        given: list[Operand] = list(self.operands)
        made = mesh.Repeat(given, regions=[body], dim=op.dim, carried=op.carried, span=op.span)
        results = way.emit(made, *((r.name, k) for r, k in zip(op.results, kinds, strict=True)))
        way.env.update(zip(op.results, results, strict=True))


def entries(way: Lowering, op: graph.Repeat) -> list[Entry]:
    """Carried vectors as they lie, or any of them over the other axis of the plane."""
    carried = [laid_out(way, way.env_of(o)) for o in op.operands[: op.carried]]
    rest = [way.env_of(o) for o in op.operands[op.carried :]]
    places = [_places(way, value) for value in carried]
    if sum(len(p) > 1 for p in places) > _MOST_MOVED:
        places = [p[:1] for p in places]
    found = []
    for wanted in product(*places):
        outer = way.fork()
        pairs = zip(carried, wanted, strict=True)
        moved = [v if to is None else move(outer, v, on_axis(outer, v, to), op) for v, to in pairs]
        over = [to for to in wanted if to is not None]
        name = f"over_{'_'.join(over)}" if over else "as_they_lie"
        found.append(Entry(name, outer, (*moved, *rest)))
    return found


def _places(way: Lowering, value: Value) -> list[str | None]:
    """Axes over which a carried value may lie inside, the one that it lies over written as None."""
    splits = way.layout_of(value).splits
    if way.problem.many_rows or len(splits) != 1 or splits[0].axis not in way.mesh.plane:
        return [None]
    return [None, way.mesh.other(splits[0].axis)]


def _stacked(dim: str, kind: TensorType) -> TensorType:
    """Type of ``kind`` collected over the layers."""
    return TensorType(kind.dtype, (dim, *kind.dims), kind.layout)
