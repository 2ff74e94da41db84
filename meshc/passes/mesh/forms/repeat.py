"""Forms of the loop over layers: where the values that it carries lie at both ends of its body."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from meshc.ir.core import Block, Operand
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import activation_layout, laid_out, on_axis, whole_rows
from meshc.passes.mesh.forms.lowering import Loop, Lowering
from meshc.passes.mesh.forms.relayouts import move

_MOST_MOVED = 3
"""More carried values than these stay where they lie."""


@dataclass(frozen=True)
class Entry:
    """A way that has come into the body of a loop, and where the loop carries values on it."""

    form: str
    way: Lowering
    only_pinned: bool = False


def _inside(outer: Lowering, op: graph.Repeat, operands: tuple[Value, ...]) -> Lowering:
    """The way into the body of ``op``, which is given ``operands``."""
    way = outer.fork()
    runs = (outer.loop.runs if outer.loop else 1) * way.problem.extents[op.dim]
    way.block, way.loop = Block(), Loop(op, outer, operands, runs)
    (old,) = op.regions
    for position, (arg, value) in enumerate(zip(old.args, operands, strict=True)):
        kind = way.type_of(value)
        dims = kind.dims if position < op.carried else kind.dims[1:]
        inner = way.value(arg.name, TensorType(kind.dtype, dims, kind.layout))
        way.env[arg] = inner
        if value in way.weights and position >= op.carried:
            way.weights.add(inner)
            way.stacks[inner] = value
        way.block.args.append(inner)
    return way


def leave(way: Lowering) -> None:
    """Close the loop around the body that ``way`` has come through."""
    assert way.loop is not None
    body, op, outer = way.block, way.loop.op, way.loop.outer
    for arg in body.args:
        if way.type_of(arg).layout is None:
            way.placed[arg] = Layout()
    given: list[Operand] = list(way.loop.operands)
    kinds = [
        way.type_of(value) if position < op.carried else _stacked(op.dim, way.type_of(value))
        for position, value in enumerate(body.ops[-1].tensors())
    ]
    way.block, way.loop = Block(list(outer.block.args), list(outer.block.ops)), outer.loop
    made = mesh.Repeat(
        given,
        regions=[body],
        dim=op.dim,
        carried=op.carried,
        rounds=op.rounds,
        span=op.span,
    )
    results = way.emit(made, *((r.name, k) for r, k in zip(op.results, kinds, strict=True)))
    way.env.update(zip(op.results, results, strict=True))


def entries(way: Lowering, op: graph.Repeat) -> list[Entry]:
    """Carried vectors as they lie, or any of them over the other axis of the plane."""
    carried = [way.rounded(laid_out(way, way.env_of(o))) for o in op.operands[: op.carried]]
    rest = [way.env_of(o) for o in op.operands[op.carried :]]
    places = [_places(way, value) for value in carried]
    if sum(len(p) > 1 for p in places) > _MOST_MOVED:
        places = [p[:1] for p in places]
    found = []
    for wanted in product(*places):
        outer = way.fork()
        pairs = zip(carried, wanted, strict=True)
        moved = [v if to is None else move(outer, v, to.layout, op) for v, to in pairs]
        over = [to.name for to in wanted if to is not None]
        copies = way.problem.many_rows and bool(over) and not way.problem.holds_copies
        inside = _inside(outer, op, (*moved, *rest))
        found.append(Entry("_".join(over) or "as_they_lie", inside, copies))
    return found


@dataclass(frozen=True)
class _Place:
    """Where a carried value may lie inside, beside where it lies already."""

    name: str
    layout: Layout


def _places(way: Lowering, value: Value) -> list[_Place | None]:
    """The layouts that a carried value may have inside, the one that it has written as None: a
    vector lies over either axis of the plane, features of many rows over columns or whole."""
    splits = way.layout_of(value).splits
    if way.problem.many_rows:
        return [None, *_of_many_rows(way, value)]
    if len(splits) != 1 or splits[0].axis not in way.mesh.plane:
        return [None]
    axis = way.mesh.other(splits[0].axis)
    return [None, _Place(f"over_{axis}", on_axis(way, value, axis))]


def _of_many_rows(way: Lowering, value: Value) -> list[_Place]:
    dims, axis = way.type_of(value).dims, way.mesh.across
    if way.mesh.columns == 1 or set(dims) <= {way.problem.row_dim}:
        return []
    over, whole = activation_layout(way, dims, axis), whole_rows(way, dims)
    layout = way.layout_of(value)
    if layout == over:
        return [_Place("whole", whole)]
    return [_Place(f"over_{axis}", over)] if layout == whole else []


def _stacked(dim: str, kind: TensorType) -> TensorType:
    """Type of ``kind`` collected over the layers."""
    return TensorType(kind.dtype, (dim, *kind.dims), kind.layout)
