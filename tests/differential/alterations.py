"""Programs with one wrong operation: mistakes that a comparison must not miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from bounded import Bounded
from drawn_programs import Apply, Call, Program, Repeat, Statement
from operations import (
    Activation,
    Append,
    Binary,
    Dims,
    Embed,
    Fragment,
    LayerNorm,
    Operation,
    Product,
    RmsNorm,
    Rope,
    Scale,
    Scope,
    Softmax,
    TopK,
)


@dataclass(frozen=True)
class Altered:
    """``operation`` computed in a wrong way that ``mistake`` names."""

    operation: Operation
    mistake: str

    @property
    def name(self) -> str:
        return f"{self.operation.name}: {self.mistake}"

    def text(self, args: Sequence[Fragment]) -> Fragment:
        return self.operation.text(args)

    def dims(self, args: Sequence[Dims]) -> Dims:
        return self.operation.dims(args)

    def apply(self, scope: Scope, args: Sequence[Bounded]) -> Bounded:
        return _MISTAKES[self.mistake](self.operation, scope, list(args))


def _rolled(value: Bounded, dim: str) -> Bounded:
    axis = value.dims.index(dim)
    return Bounded(value.dims, np.roll(value.value, 1, axis), np.roll(value.error, 1, axis))


def _right_turned(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """The right operand is one place off along what is summed, as after one shift too few."""
    args[1] = _rolled(args[1], op.summed[0])
    return op.apply(scope, args)


def _last_part_missing(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """The last element of what is summed takes no part, as where a pad is cut wrongly."""
    axis = args[1].dims.index(op.summed[-1])
    value = args[1].value.copy()
    np.moveaxis(value, axis, 0)[-1] = 0
    args[1] = Bounded(args[1].dims, value, args[1].error)
    return op.apply(scope, args)


def _heads_dealt(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """Query head h uses key head h mod G."""
    many, few = op.shared
    axis, times = args[1].dims.index(few), args[0].extent(many) // args[1].extent(few)
    dims = tuple(many if d == few else d for d in args[1].dims)
    right = Bounded(
        dims,
        np.concatenate([args[1].value] * times, axis),
        np.concatenate([args[1].error] * times, axis),
    )
    return scope.rules.contract(args[0], right, op.summed)


def _row_moved(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """Positions are one too high."""
    return op.apply(replace(scope, position=scope.position + 1), args)


def _gain_missing(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """The gain is left out."""
    args[1] = Bounded(args[1].dims, np.ones_like(args[1].value), args[1].error)
    return op.apply(scope, args)


def _not_divided(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """Twice as much counts in the sum of a softmax."""
    found = op.apply(scope, args)
    return Bounded(found.dims, found.value / 2, found.error)


def _written_elsewhere(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """The cache's oldest rows are lost: rows go to the places of those before."""
    found = op.apply(scope, args)
    moved = _rolled(found, "S")
    scope.caches[op.cache, scope.layer] = moved
    return moved


def _next_row(op: Operation, scope: Scope, args: list[Bounded]) -> Bounded:
    """Each id takes the row behind its own."""
    return op.apply(scope, [_rolled(args[0], args[0].dims[0])])


_MISTAKES = {
    "right operand turned": _right_turned,
    "last part missing": _last_part_missing,
    "heads dealt": _heads_dealt,
    "row moved": _row_moved,
    "gain missing": _gain_missing,
    "not divided": _not_divided,
    "written elsewhere": _written_elsewhere,
    "next row": _next_row,
}


def wrong(op: Operation) -> list[Operation]:
    """Operations that someone could take for ``op``."""
    if isinstance(op, Binary):
        return [Binary(sign) for sign in "+-*" if sign != op.sign]
    if isinstance(op, Scale):
        return [Scale(op.pattern, op.factor * 1.5, op.root)]
    if isinstance(op, Activation):
        return [Activation("gelu") if op.function == "silu" else Activation("silu")]
    if isinstance(op, RmsNorm):
        return [Altered(op, "gain missing"), RmsNorm(1.0)]
    if isinstance(op, LayerNorm):
        return [RmsNorm(op.eps), LayerNorm(1.0)]
    if isinstance(op, Softmax):
        moved = [Altered(op, "row moved")] if op.causal else []
        wider = [replace(op, window=op.window + 1)] if op.window else []
        return [Altered(op, "not divided"), *moved, *wider]
    if isinstance(op, TopK):
        fewer = [replace(op, count=op.count - 1)] if op.count > 1 else []
        return [Altered(op, "not divided"), *fewer]
    if isinstance(op, Rope):
        style = "half" if op.style == "interleaved" else "interleaved"
        return [Altered(op, "row moved"), replace(op, style=style)]
    if isinstance(op, Product):
        dealt = [Altered(op, "heads dealt")] if op.shared else []
        return [Altered(op, "right operand turned"), Altered(op, "last part missing"), *dealt]
    if isinstance(op, Append):
        return [Altered(op, "written elsewhere")]
    return [Altered(op, "next row")] if isinstance(op, Embed) else []


def altered(program: Program) -> Iterator[tuple[str, Program]]:
    """The program with each of its operations wrong in turn, and a repeat one layer short."""
    for name, body in _bodies(program.body):
        yield name, replace(program, body=body)
    for statement in program.body:
        if isinstance(statement, Repeat) and program.extents[statement.count] > 1:
            count = program.extents[statement.count] - 1
            extents = {**program.extents, statement.count: count}
            yield "a layer missing", replace(program, extents=extents)


def _bodies(body: Sequence[Statement]) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    for n, statement in enumerate(body):
        for name, other in _statements(statement):
            yield name, (*body[:n], other, *body[n + 1 :])


def _statements(statement: Statement) -> Iterator[tuple[str, Statement]]:
    if isinstance(statement, Apply):
        for op in wrong(statement.operation):
            name = f"{statement.operation.name} for {op.name}"
            yield name, replace(statement, operation=op)
    elif isinstance(statement, Call):
        for name, body in _bodies(statement.block.body):
            yield name, replace(statement, block=replace(statement.block, body=body))
    else:
        for name, body in _bodies(statement.body):
            yield name, replace(statement, body=body)
