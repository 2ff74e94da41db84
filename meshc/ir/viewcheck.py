"""Checks of operands: values in scope, views within their buffers, channels declared."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.module import MACHINE_LEVELS, Module
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType, TokenType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, Symbol, View


def coordinates_of(module: Module) -> frozenset[str]:
    """Names of a core's coordinates in ``module``; none without a mesh."""
    return module.mesh.coordinates if module.mesh else frozenset()


def operand_mistakes(module: Module, op: Op, scope: set[Value], names: frozenset[str]) -> list[str]:
    """What is wrong with the operands and the expressions of ``op``."""
    found: list[str] = []
    coordinates = coordinates_of(module) | names
    for operand in op.operands:
        if isinstance(operand, Value):
            found += _value(module, op, operand, scope)
        elif isinstance(operand, View):
            found += _view(operand, scope, names, coordinates)
    found += _kinds(module, op)
    if isinstance(op, tile.For):
        found += unknown_names(op.count.free_vars, names, "the count")
        if op.count.is_const and op.count.constant < 0:
            found.append(f"the count is {op.count}")
        found += _rounds(module, op, names)
    if isinstance(op, task.Stream) and op.below is not None:
        found += unknown_names(op.below.free_vars, coordinates, "what it is below")
    if isinstance(op, tile.Sweep):
        found += unknown_names(op.rank.free_vars, coordinates, "the rank")
    if isinstance(op, tile.Compute):
        for value in op.params.values():
            if isinstance(value, Expr):
                found += unknown_names(value.free_vars, coordinates, "a parameter")
    return found


def unknown_names(used: frozenset[str], known: frozenset[str], *where: object) -> list[str]:
    """One mistake for each name in ``used`` that is not ``known``; ``where`` in words, which are
    put together for mistakes alone."""
    unknown = used - known
    return [f"{' '.join(map(str, where))} names '{name}', unknown here" for name in sorted(unknown)]


def repeated(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, in order of their second occurrence."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
        seen.add(name)
    return list(again)


def _rounds(module: Module, op: tile.For, names: frozenset[str]) -> list[str]:
    """Scalars of which each round has its own: declared, as many in every loop, and not those of
    a loop around."""
    if not op.each:
        return []
    found = [f"names '{n}' as each, which is no scalar" for n in op.each if n not in module.scalars]
    found += [f"names '{n}' as each inside a loop that does" for n in op.each if n in names]
    if not op.count.is_const:
        found.append(f"has one of each scalar for every round, but the count {op.count}")
    counts = tile.scalars_of_rounds(module)
    for name in op.each:
        if op.count.is_const and op.count.constant != counts[name]:
            found.append(f"has {op.count} of '{name}', another loop {counts[name]}")
    return found


def _value(module: Module, op: Op, value: Value, scope: set[Value]) -> list[str]:
    if value not in scope:
        return [f"{value} is not defined in this block before its use"]
    if module.level in MACHINE_LEVELS and not isinstance(value.type, TokenType):
        return [f"{value} is no token"]
    if isinstance(value.type, TokenType) and not isinstance(op, tile.Wait):
        return [f"takes no token such as {value}"]
    return []


def _kinds(module: Module, op: Op) -> list[str]:
    """Transfers name a channel and a view, kernels take views, waits take tokens."""
    if isinstance(op, (tile.Send, tile.Recv, tile.Relay)):
        return _transfer(module, op)
    wanted = View if isinstance(op, _OF_VIEWS) else Value
    wrong = [str(o) for o in op.operands if not isinstance(o, wanted)]
    return [f"cannot take {wrong[0]}"] if wrong else []


_OF_VIEWS = (tile.Compute, task.Need, task.Stream, task.Give, task.Routed)

_ENDS: dict[type[Op], tuple[int, str]] = {
    tile.Send: (1, "a channel"),
    tile.Recv: (1, "a channel"),
    tile.Relay: (2, "two channels"),
}


def _transfer(module: Module, op: tile.Transfer) -> list[str]:
    """Channels that are declared, then a view; a token."""
    count, words = _ENDS[type(op)]
    if [type(o) for o in op.operands] != [Symbol] * count + [View]:
        return [f"takes {words} and a view of a buffer"]
    declared = [c.name for c in module.channels]
    for symbol in op.operands[:count]:
        if isinstance(symbol, Symbol) and symbol.name not in declared:
            return [f"channel {symbol} is not declared"]
    if not all(isinstance(r.type, TokenType) for r in op.results):
        return ["gives a token"]
    return []


def _view(
    view: View, scope: set[Value], names: frozenset[str], coordinates: frozenset[str]
) -> list[str]:
    if view.buffer not in scope or not isinstance(view.buffer.type, BufferType):
        return [f"{view.buffer} is no buffer"]
    shape = view.buffer.type.shape
    if len(view.indices) > len(shape):
        return [f"{view} indexes {len(view.indices)} dims of {len(shape)}"]
    found: list[str] = []
    for index, extent in zip(view.indices, shape, strict=False):
        if isinstance(index, Point):
            found += unknown_names(index.at.free_vars, coordinates, view)
            found += _bounds(view, index.at, 1, extent)
        elif isinstance(index, Range):
            found += unknown_names(index.start.free_vars, coordinates, view)
            found += unknown_names(index.extent.free_vars, names, "an extent of", view)
            found += _empty(view, index.extent)
            if index.extent.is_const:
                reach = (index.extent.constant - 1) * index.step + 1
                found += _bounds(view, index.start, reach, extent)
    return found + _shape(view, names)


def _empty(view: View, extent: Expr) -> list[str]:
    if extent.is_const and extent.constant < 1:
        return [f"{view} has an extent of {extent}"]
    return []


def _bounds(view: View, start: Expr, reach: int, extent: int) -> list[str]:
    """Constant starts are held against the buffer; the others are for ``interp`` to watch."""
    if start.is_const and not 0 <= start.constant <= start.constant + reach <= extent:
        return [f"{view} leaves the buffer, {view.buffer} : {view.buffer.type}"]
    return []


def _shape(view: View, names: frozenset[str]) -> list[str]:
    found: list[str] = []
    for extent in view.reshape:
        found += _empty(view, extent)
        found += unknown_names(extent.free_vars, names, "the shape of", view)
    if not view.reshape and not view.order:
        return found
    flat = View(view.buffer, view.indices).shape()
    if view.reshape and all(e.is_const for e in (*flat, *view.reshape)):
        have, want = (prod(e.constant for e in side) for side in (flat, view.reshape))
        if have != want:
            found.append(f"{view} reshapes {have} elements to {want}")
    rank = len(view.reshape or flat)
    if view.order and sorted(view.order) != list(range(rank)):
        found.append(f"{view} has no permutation of its {rank} dims as order")
    return found
