"""Conversions between types: implicit coercion, ``@as``, and constants as code."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

from meshc.sim import ir
from meshc.sim.exact_numbers import float_to_int, int_to_float, round_to
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Array, Enum, Float, Fn, Int, Pointer, Struct, Type
from meshc.sim.sema.iteration_lanes import each
from meshc.sim.sema.values import FnVal, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


def address(value: int) -> ir.Const:
    """A byte address as code."""
    return ir.Const(ty.U16, value)


def offset_by(base: ir.Expr, offset: ir.Expr | int) -> ir.Expr:
    """``base + offset`` in bytes, folded where possible."""
    if isinstance(offset, int):
        offset = address(offset)
    if isinstance(offset, ir.Const):
        if offset.value == 0:
            return base
        if isinstance(base, ir.Const):
            return address(base.value + offset.value)
    return ir.Bin(ty.U16, "+", base, offset)


def scaled(index: ir.Expr, size: int) -> ir.Expr:
    """``index * size`` as an unsigned byte offset."""
    if isinstance(index, ir.Const):
        return address(index.value * size)
    wide = index if index.type == ty.U16 else ir.Cast(ty.U16, index)
    return wide if size == 1 else ir.Bin(ty.U16, "*", wide, address(size))


def zero_of(kind: Type) -> Any:
    """The all-zero value of a type, as a known value."""
    match kind:
        case Array():
            return [zero_of(kind.element) for _ in range(kind.count)]
        case Struct():
            return {name: Val(field, zero_of(field)) for name, field in kind.stored}
        case Float():
            return 0.0
    return False if kind == ty.BOOL else 0


def copied(value: Val) -> Val:
    """A value that may be changed without changing the original."""
    if isinstance(value.v, list | dict):
        return Val(value.type, _own(value.v), value.known)
    return value


def _own(value: Any) -> Any:
    """Containers copied all the way down; a copy is no longer the constant it comes from."""
    if isinstance(value, list):
        return [_own(v) for v in value] if value and isinstance(value[0], dict) else list(value)
    if isinstance(value, dict):
        return {
            k: Val(v.type, _own(v.v), v.known) if isinstance(v.v, list | dict) else copy.copy(v)
            for k, v in value.items()
        }
    return value


def coerce(value: Val, want: Type, span: Span) -> Val:
    """``value`` as a ``want`` where that is allowed without a cast.

    Raises MeshcError ``csl-type`` when it is not, ``csl-range`` when a known number does not fit.
    """
    have = value.type
    if have == want or want == ty.ANYTYPE:
        return value
    if value.known or have == ty.STRUCT:
        known = _coerce_known(value, want, span)
        if known is not None:
            return known
    result = _coerce_code(value, want)
    if result is None:
        fail("csl-type", f"expected a value of type '{want}', found '{have}'", span)
    return result


def _coerce_known(value: Val, want: Type, span: Span) -> Val | None:
    have, v = value.type, value.v
    match want:
        case Int() if ty.is_int(have):
            if not want.low <= v <= want.high:
                if isinstance(have, Int) and have.bits == want.bits:
                    return Val(want, want.wrap(v))
                fail("csl-range", f"{v} does not fit type '{want}'", span)
            return Val(want, v)
        case Float() if ty.is_int(have):
            return Val(want, each(partial(int_to_float, want), v))
        case Float() if ty.is_float(have):
            return Val(want, each(partial(round_to, want), v))
        case Enum() if have == ty.ENUM_LITERAL:
            number = want.value(v)
            if number is None:
                fail("csl-unknown-name", f"enum '{want}' has no member '{v}'", span)
            return Val(want, number)
        case Struct() if have == ty.STRUCT:
            return _struct_from(value, want, span)
        case Array() if have == ty.STRUCT:
            return _array_from(value, want, span)
        case Array() if isinstance(have, Array) and have.dims == want.dims:
            parts = [coerce(Val(have.element, e), want.element, span).v for e in v]
            return Val(want, parts, home=None)
        case Fn() if isinstance(v, FnVal):
            return Val(want, v)
    if want == ty.COMPTIME_INT and isinstance(have, Int):
        return Val(want, v)
    if want == ty.COMPTIME_FLOAT and ty.is_numeric(have):
        return Val(want, each(partial(int_to_float, want) if isinstance(v, int) else float, v))
    if want in ty.IDS and (ty.is_int(have) or have in ty.IDS):
        return Val(want, v)
    if have == ty.UNDEFINED:
        return Val(want, zero_of(want))
    if want == ty.VOID and have == ty.STRUCT and not v:
        return Val(ty.VOID, None)
    return None


def _struct_from(value: Val, want: Struct, span: Span) -> Val:
    fields = {}
    for name in value.v:
        if want.field(str(name)) is None:
            fail("csl-unknown-name", f"struct '{want}' has no field '{name}'", span)
    for name, kind in want.fields:
        if name in value.v:
            fields[name] = coerce(value.v[name], kind, span)
        elif not want.union:
            fail("csl-type", f"field '{name}' of struct '{want}' is missing", span)
    if want.union and len(fields) != 1:
        fail("csl-type", f"a literal of '{want}' names one field, found {len(fields)}", span)
    known = all(f.known for f in fields.values())
    return Val(want, fields, known)


def _array_from(value: Val, want: Array, span: Span) -> Val:
    parts = [coerce(part, want.element, span) for part in value.v.values()]
    if len(parts) != want.count:
        fail("csl-type", f"expected {want.count} elements, found {len(parts)}", span)
    if all(p.known for p in parts):
        return Val(want, [p.v for p in parts])
    return Val(want, parts, False)


def _coerce_code(value: Val, want: Type) -> Val | None:
    have = value.type
    if isinstance(want, Pointer) and isinstance(want.target, Fn) and isinstance(have, Fn):
        return Val(want, value.v, value.known)
    if isinstance(have, Pointer) and isinstance(want, Pointer):
        return Val(want, value.v, value.known) if _pointers_agree(have, want) else None
    if have in ty.IDS and want in ty.IDS:
        return Val(want, value.v, value.known)
    if value.known:
        return None
    if isinstance(have, Int) and isinstance(want, Int) and _widens(have, want):
        return Val(want, ir.Cast(want, value.v), False)
    if isinstance(have, Float) and want == ty.F32 and have.bits == 16:
        return Val(want, ir.Cast(want, value.v), False)
    if isinstance(have, Fn) and isinstance(want, Fn):
        return Val(want, value.v, False)
    if want in ty.IDS and isinstance(have, Int):
        return Val(want, value.v, False)
    return None


def _widens(have: Int, want: Int) -> bool:
    return have.low >= want.low and have.high <= want.high


def _pointers_agree(have: Pointer, want: Pointer) -> bool:
    source, target = have.target, want.target
    while isinstance(source, Array):
        source = source.element
    while isinstance(target, Array):
        target = target.element
    return (
        source == target
        or target == ty.ANYOPAQUE
        or isinstance(source, Enum)
        or isinstance(target, Fn)
        or (isinstance(target, Int) and isinstance(source, Int) and source.bits == target.bits)
    )


def cast(value: Val, want: Type, span: Span) -> Val:
    """``@as(want, value)``."""
    have = value.type
    if have == want:
        return value
    if value.known and isinstance(value.v, int | float):
        return Val(want, _cast_known(value.v, have, want, span))
    numeric = isinstance(want, Int | Float | Enum) or want == ty.BOOL
    if isinstance(have, Array | Struct):
        fail("csl-type", f"@as from '{have}' to '{want}'", span)
    if not value.known and numeric:
        base = value.v
        if isinstance(have, Enum):
            base = ir.Bits(have.base, base)
        elif have in ty.IDS or isinstance(have, Pointer):
            base = ir.Bits(ty.U16, base)
        return Val(want, ir.Cast(want.base if isinstance(want, Enum) else want, base), False)
    return coerce(value, want, span)


def _cast_known(v: Any, have: Type, want: Type, span: Span) -> Any:
    if isinstance(want, Enum):
        return _cast_known(v, have, want.base, span)
    if want == ty.BOOL:
        return v != 0
    if isinstance(want, Int):
        if isinstance(v, float):
            return each(partial(float_to_int, want), v)
        if have == ty.COMPTIME_INT and not want.low <= int(v) <= want.high:
            fail("csl-range", f"{v} does not fit type '{want}'", span)
        return want.wrap(int(v))
    if ty.is_float(want):
        return each(partial(int_to_float if isinstance(v, int) else round_to, want), v)
    if want == ty.COMPTIME_INT and isinstance(v, int | float):
        if not math.isfinite(v):
            fail("csl-range", f"{v} is no integer", span)
        return int(v)
    return coerce(Val(have, v), want, span).v
