"""Unary and binary operators: peer types, folding of known operands, code for the others."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from meshc.sim import ir
from meshc.sim.exact_numbers import float_div, int_div, int_rem, round_to
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Enum, Float, Fn, Int, Pointer, Struct, Type
from meshc.sim.sema.iteration_lanes import each
from meshc.sim.sema.values import Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NOT_COMPARED = frozenset((ty.STRUCT, ty.MODULE, ty.RANGE, ty.VOID)) | ty.DSDS
_INT: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": int_div,
    "%": int_rem,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": float_div,
}


def binary(op: str, left: Val, right: Val, span: Span) -> Val:
    """``left op right``. Raises MeshcError ``csl-type`` for operands that do not go together."""
    if op in ("<<", ">>"):
        return _shift(op, left, right, span)
    if op == "++":
        return _concat(left, right, span)
    kind = peer(left, right, op, span)
    left, right = coerce(left, kind, span), coerce(right, kind, span)
    if op in _COMPARE:
        equal = op in ("==", "!=") and not isinstance(kind, Array | Struct | Fn)
        if not (ty.is_numeric(kind) or (equal and kind not in _NOT_COMPARED)):
            fail("csl-type", f"operator '{op}' is not defined for '{kind}'", span)
        return _compare(op, kind, left, right, span)
    if not (ty.is_numeric(kind) or (kind == ty.BOOL and op in "&|^")):
        fail("csl-type", f"operator '{op}' is not defined for '{kind}'", span)
    if ty.is_float(kind) and op in "&|^%":
        fail("csl-type", f"operator '{op}' is not defined for '{kind}'", span)
    if right.known and op in "/%" and right.v == 0 and ty.is_int(kind):
        fail("csl-range", "division by zero", span)
    if left.known and right.known:
        return Val(kind, fold(op, kind, left.v, right.v))
    return Val(kind, ir.Bin(kind, op, as_code(left), as_code(right)), False)


def fold(op: str, kind: Type, left: Any, right: Any) -> Any:
    """The known result of an arithmetic operator."""
    if kind == ty.BOOL:
        return bool(_INT[op](left, right))
    if ty.is_float(kind):
        return each(lambda a, b: round_to(kind, _FLOAT[op](a, b)), left, right)
    result = _INT[op](left, right)
    return kind.wrap(result) if isinstance(kind, Int) else result


def peer(left: Val, right: Val, op: str, span: Span) -> Type:
    """The common type of two operands; literals adapt, integers widen, known ones convert."""
    a, b = left.type, right.type
    if a == b:
        return a
    if a in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT) and b in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
        return ty.COMPTIME_FLOAT
    for one, other in ((a, b), (b, a)):
        if one == ty.COMPTIME_INT and (ty.is_numeric(other) or other in ty.IDS):
            return other
        if one == ty.COMPTIME_FLOAT and isinstance(other, Float):
            return other
        if one == ty.ENUM_LITERAL and isinstance(other, Enum):
            return other
    if isinstance(a, Int) and isinstance(b, Int):
        found = _int_peer(left, right, a, b)
        if found is not None:
            return found
    if isinstance(a, Float) and isinstance(b, Float):
        return a if a.bits >= b.bits else b
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return a
    if (a in ty.IDS and b in ty.IDS) or (a in ty.IDS and ty.is_int(b)):
        return a
    if b in ty.IDS and ty.is_int(a):
        return b
    fail(
        "csl-type",
        f"operands of '{op}' have different types, '{a}' and '{b}'",
        span,
        help="convert one of them with @as",
    )


def _int_peer(left: Val, right: Val, a: Int, b: Int) -> Int | None:
    if right.known and a.low <= right.v <= a.high:
        return a
    if left.known and b.low <= left.v <= b.high:
        return b
    if a.low <= b.low and b.high <= a.high:
        return a
    if b.low <= a.low and a.high <= b.high:
        return b
    return None


def _compare(op: str, kind: Type, left: Val, right: Val, span: Span) -> Val:
    if left.known and right.known:
        return Val(ty.BOOL, _COMPARE[op](left.v, right.v))
    return Val(ty.BOOL, ir.Bin(ty.BOOL, op, as_code(left), as_code(right)), False)


def _shift(op: str, left: Val, right: Val, span: Span) -> Val:
    if not (ty.is_int(left.type) and ty.is_int(right.type)):
        fail("csl-type", f"'{op}' needs integers, found '{left.type}' and '{right.type}'", span)
    if right.known and right.v < 0:
        fail("csl-range", "shift by a negative amount", span)
    if left.known and right.known:
        value = left.v << min(right.v, 4096) if op == "<<" else left.v >> right.v
        return Val(left.type, left.type.wrap(value) if isinstance(left.type, Int) else value)
    kind = left.type
    if kind == ty.COMPTIME_INT:
        kind = right.type if isinstance(right.type, Int) else ty.I16
        left = coerce(left, kind, span)
    amount = right if isinstance(right.type, Int) else coerce(right, ty.U16, span)
    return Val(kind, ir.Bin(kind, op, as_code(left), as_code(amount)), False)


def _concat(left: Val, right: Val, span: Span) -> Val:
    if left.type == ty.STRING and right.type == ty.STRING:
        return Val(ty.STRING, left.v + right.v)
    fail("csl-type", f"'++' needs strings, found '{left.type}' and '{right.type}'", span)


def unary(op: str, operand: Val, span: Span) -> Val:
    """``-x``, ``!x`` or ``~x``."""
    kind = operand.type
    legal = {"-": ty.is_numeric(kind), "!": kind == ty.BOOL, "~": isinstance(kind, Int)}[op]
    if not legal:
        fail("csl-type", f"operator '{op}' is not defined for '{kind}'", span)
    if not operand.known:
        return Val(kind, ir.Un(kind, op, operand.v), False)
    if op == "!":
        return Val(kind, not operand.v)
    value = -operand.v if op == "-" else ~operand.v
    return Val(kind, kind.wrap(value) if isinstance(kind, Int) else value)


def as_code(value: Val) -> ir.Expr:
    """A scalar as code."""
    if not value.known:
        code: ir.Expr = value.v
        return code
    if not isinstance(value.v, int | float):
        fail("csl-type", f"a value of type '{value.type}' is none of the running program")
    return ir.Const(value.type, value.v)
