"""Builtins that make and convert values, and those that inspect types."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from meshc.sim import ir
from meshc.sim.config_space import THREAD_PRIORITY, task_priority_word
from meshc.sim.exact_numbers import from_bits, to_bits
from meshc.sim.lang import tree as t
from meshc.sim.lang.lexer import byte_text, text_bytes
from meshc.sim.real_functions import NAMES
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.convert import cast, coerce, zero_of
from meshc.sim.sema.csl_types import Array, Enum, Float, Fn, Int, Pointer, Struct, Type
from meshc.sim.sema.images import packed_bits, value_of_bits
from meshc.sim.sema.iteration_lanes import each
from meshc.sim.sema.json_values import json_value
from meshc.sim.sema.packed_fields import scalar_of_bits, unit_of
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.values import FnVal, Frame, RangeVal, Val
from meshc.support.diagnostics import fail

VOID = Val(ty.VOID, None)


@builtin("as", args=(2, 2))
def _as(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    value = an.eval(node.args[1], frame, kind)
    if value.type != kind:
        _no_function(value.type, kind, node)
    if not value.known:
        an.check_runtime_type(kind, f"@{node.name}", node.span)
    return cast(value, kind, node.span)


@builtin("bitcast", args=(2, 2))
def _bitcast(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    value = an.eval(node.args[1], frame)
    if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
        base: Type = kind
        if value.type == ty.COMPTIME_INT and isinstance(kind, Float | Pointer):
            base = Int(kind.bits if isinstance(kind, Float) else 16, False)
        elif value.type == ty.COMPTIME_FLOAT and isinstance(kind, Int):
            base = an.unit.half if kind.bits == 16 else ty.F32
        value = coerce(value, base, node.span)
    _no_function(value.type, kind, node)
    for side in (value.type, kind):
        if isinstance(side, Array) or (isinstance(side, Struct) and not side.packed):
            fail("csl-type", f"@bitcast from '{value.type}' to '{kind}'", node.span)
    packed = isinstance(value.type, Struct) or isinstance(kind, Struct)
    width = ty.bits_of if packed else lambda side: 8 * ty.size_of(side)
    source, target = width(value.type), width(kind)
    if source != target:
        fail(
            "csl-type",
            f"@bitcast from '{value.type}' ({source} bits) to '{kind}' ({target} bits)",
            node.span,
        )
    if packed:
        return _packed_bitcast(an, value, kind, node, frame)
    if value.known:
        if isinstance(kind, Pointer) or isinstance(value.type, Pointer):
            return Val(kind, value.v)
        if not isinstance(value.v, int | float):
            fail("csl-type", f"@bitcast from '{value.type}' to '{kind}'", node.span)
        return Val(kind, from_bits(_plain(kind), to_bits(_plain(value.type), value.v)))
    return Val(kind, ir.Bits(kind, value.v), False)


def _no_function(have: Type, want: Type, node: t.Builtin) -> None:
    """An error for functions, to which the simulator gives no addresses."""
    for kind in (have, want):
        if isinstance(kind, Fn) or (isinstance(kind, Pointer) and isinstance(kind.target, Fn)):
            words = "functions have no addresses in the simulator"
            fail("csl-type", f"@{node.name} from '{have}' to '{want}': {words}", node.span)


def _packed_bitcast(an: Analyzer, value: Val, kind: Type, node: t.Node, frame: Frame) -> Val:
    """A packed struct as a scalar, a scalar as a packed struct, or one such struct as another."""
    if value.known:
        return Val(kind, value_of_bits(kind, packed_bits(value.type, value.v)))
    bits = an.packed(value, unit_of(kind))
    if not isinstance(kind, Struct):
        return Val(kind, scalar_of_bits(kind, bits), False)
    addr = an.local_place("bits", kind, frame)
    an.emit(frame, ir.Store(an.place_of(node), unit_of(kind), addr, bits))
    return Val(kind, addr, False)


def _plain(kind: Type) -> Type:
    return kind.base if isinstance(kind, Enum) else kind


@builtin("ptrcast", args=(2, 2))
def _ptrcast(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    value = an.eval(node.args[1], frame)
    if not isinstance(value.type, Pointer) or not isinstance(kind, Pointer):
        fail("csl-type", f"@ptrcast from '{value.type}' to '{kind}'", node.span)
    if value.type != kind:
        _no_function(value.type, kind, node)
    return Val(kind, value.v, value.known)


@builtin("zeros", args=(1, 1))
def _zeros(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = _array_type(an, node, frame)
    return Val(kind, zero_of(kind))


@builtin("constants", args=(2, 2))
def _constants(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = _array_type(an, node, frame)
    value = coerce(an.known(node.args[1], frame, kind.element), kind.element, node.span)
    return Val(kind, [value.v] * kind.count)


def _array_type(an: Analyzer, node: t.Builtin, frame: Frame) -> Array:
    kind = an.type_from(node.args[0], frame)
    if not isinstance(kind, Array):
        fail("csl-type", f"@{node.name} needs an array type, found '{kind}'", node.span)
    return kind


@builtin("range", args=(2, 4))
def _range(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    if not ty.is_int(kind):
        fail("csl-type", f"a range is one of integers, not of '{kind}'", node.span)

    def bound(arg: t.Expr) -> Val:
        return coerce(an.eval(arg, frame, kind), kind, arg.span)

    bounds = an.in_order(frame, node, (partial(bound, arg) for arg in node.args[1:]))
    zero, one = coerce(Val(ty.COMPTIME_INT, 0), kind, node.span), Val(kind, 1)
    low, high = (zero, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
    step = bounds[2] if len(bounds) > 2 else one
    if step.known and step.v == 0:
        fail("csl-range", "the step of a range must not be zero", node.span)
    return Val(ty.RANGE, RangeVal(kind, low, high, step))


@builtin("range_start", "range_stop", "range_step", args=(1, 1))
def _range_part(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.eval(node.args[0], frame)
    if value.type != ty.RANGE:
        fail("csl-type", f"expected a range, found '{value.type}'", node.span)
    part = {"range_start": "low", "range_stop": "high", "range_step": "step"}[node.name]
    found: Val = getattr(value.v, part)
    return found


@builtin("is_arch", args=(1, 1))
def _is_arch(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.BOOL, an.text(node.args[0], frame) == an.arch)


@builtin("concat_structs", args=(2, 2))
def _concat(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    left, right = an.all_in_order(node.args, frame)
    known = left.known and right.known
    for value in (left, right):
        if value.type != ty.STRUCT:
            fail("csl-type", f"expected a struct, found '{value.type}'", node.span)
    both = [name for name in left.v if name in right.v and isinstance(name, str)]
    if both:
        fail("csl-type", f"both structs have a field '{both[0]}'", node.span)
    if all(isinstance(k, int) for k in (*left.v, *right.v)):
        return Val(ty.STRUCT, dict(enumerate([*left.v.values(), *right.v.values()])), known)
    return Val(ty.STRUCT, {**left.v, **right.v}, known)


@builtin("is_same_type", args=(2, 2))
def _same(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    left, right = (an.type_from(a, frame) for a in node.args)
    return Val(ty.BOOL, left == right)


@builtin("type_of", args=(1, 1))
def _type_of(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.TYPE, an.without_code(frame, node.args[0]).type)


@builtin("comptime_assert", args=(1, 2))
def _comptime_assert(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    cond = an.boolean(node.args[0], frame.at_comptime())
    if not cond.known:
        fail("csl-comptime", "this value must be known at compile time", node.span)
    if not cond.v:
        text = an.text(node.args[1], frame) if len(node.args) > 1 else "it does not hold"
        fail("csl-assert", f"compile-time assertion: {text}", node.span)
    return VOID


@builtin("comptime_print", args=(1, 16))
def _print(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    for arg in node.args:
        value = an.known(arg, frame)
        print(f"{node.span}: {_shown(value)}")
    return VOID


def _shown(value: Val) -> str:
    if isinstance(value.v, dict):
        inner = ", ".join(f".{k} = {_shown(v)}" for k, v in value.v.items())
        return f".{{ {inner} }}"
    return value.v.name if isinstance(value.v, FnVal) else str(value.v)


@builtin("assert", args=(1, 2))
def _assert(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    cond = an.boolean(node.args[0], frame)
    if frame.known or (cond.known and cond.v):
        if cond.known and not cond.v:
            fail("csl-assert", "assertion does not hold", node.span)
        return VOID
    an.emit(frame, ir.Effect(an.place_of(node), None, "assert", [an.code(cond)]))
    return VOID


@builtin("get_int", args=(1, 1))
def _get_int(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.eval(node.args[0], frame)
    if ty.is_int(value.type):
        return value
    if not isinstance(value.type, Enum) and value.type not in ty.IDS:
        fail("csl-type", f"@get_int of '{value.type}'", node.span)
    kind = value.type.base if isinstance(value.type, Enum) else ty.U16
    if value.known:
        return Val(kind, an.as_number(value, node.span))
    return Val(kind, ir.Bits(kind, value.v), False)


@builtin("is_comptime", args=(0, 0))
def _is_comptime(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.BOOL, frame.known)


@builtin("fp16", args=(0, 0))
def _fp16(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.TYPE, an.unit.half)


@builtin("dimensions", "rank", "element_type", "element_count", args=(1, 1))
def _reflect(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.eval(node.args[0], frame)
    kind = value.v if value.type == ty.TYPE else value.type
    while isinstance(kind, Pointer):
        kind = kind.target
    if not isinstance(kind, Array):
        fail("csl-type", f"@{node.name} needs an array, found '{kind}'", node.span)
    if node.name == "rank":
        return Val(ty.U16, len(kind.dims))
    if node.name == "element_type":
        return Val(ty.TYPE, kind.element)
    if node.name == "element_count":
        return Val(ty.U32, kind.count)
    return Val(Array((len(kind.dims),), ty.U32), list(kind.dims))


@builtin("field", "has_field", args=(2, 2))
def _field(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    name = an.text(node.args[1], frame)
    if node.name == "field":
        return an.eval(t.Field(node.span, node.args[0], name), frame)
    value = an.eval(node.args[0], frame)
    kind = value.v if value.type == ty.TYPE else value.type
    if isinstance(kind, Struct):
        return Val(ty.BOOL, kind.field(name) is not None)
    if kind != ty.STRUCT:
        fail("csl-type", f"@has_field of '{kind}'", node.span)
    return Val(ty.BOOL, name in value.v)


@builtin("strlen", args=(1, 1))
def _strlen(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.COMPTIME_INT, len(text_bytes(an.text(node.args[0], frame))))


@builtin("strcat", args=(0, 64))
def _strcat(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    return Val(ty.STRING, "".join(an.text(a, frame) for a in node.args))


@builtin("as_string", args=(1, 1))
def _as_string(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.known(node.args[0], frame)
    if isinstance(value.v, list):
        if value.type != Array((len(value.v),), ty.U8):
            fail("csl-type", f"@as_string of '{value.type}'", node.span)
        return Val(ty.STRING, bytes(value.v).decode("utf-8", "surrogateescape"))
    if not isinstance(value.v, int | float | str):
        fail("csl-type", f"@as_string of '{value.type}'", node.span)
    return Val(ty.STRING, str(value.v))


@builtin("get_string_from_byte", args=(1, 1))
def _from_byte(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    byte = an.number(node.args[0], frame)
    if not 0 <= byte <= 255:
        fail("csl-range", f"{byte} is no byte", node.span)
    return Val(ty.STRING, byte_text(byte))


@builtin("get_array", args=(1, 1))
def _get_array(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    data = text_bytes(an.text(node.args[0], frame))
    return Val(Array((len(data),), ty.U8), list(data))


@builtin("random16", args=(0, 0))
def _random16(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    dst = an.unit.temp(ty.U16)
    an.emit(frame, ir.Effect(an.place_of(node), dst, "random16", []))
    return Val(ty.U16, ir.Local(ty.U16, dst), False)


@builtin("set_active_prng", args=(1, 1))
def _prng(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    code = an.code(coerce(an.eval(node.args[0], frame), ty.U16, node.span))
    an.emit(frame, ir.Effect(an.place_of(node), None, "set_prng", [code]))
    return VOID


@builtin("import_comptime_value", args=(2, 2))
def _import_value(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    path = an.text(node.args[1], frame)
    text = an.loader.text(path, frame.module.folder, node.span)
    try:
        data = json.loads(text)
    except ValueError as problem:
        fail("csl-json", f"'{path}' is not JSON: {problem}", node.span)
    return json_value(an, data, kind, frame, node.span)


@builtin("sim_value", args=(2, 8))
def _sim_value(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: ``@sim_value("name", T, args...)``, a pure function of the machine."""
    name = an.known(node.args[0], frame).v
    kind = an.type_from(node.args[1], frame)
    values = an.all_in_order(node.args[2:], frame)
    if name in NAMES and not ty.is_float(kind):
        fail("csl-type", f"'{name}' is a function of floats, not of '{kind}'", node.span)
    for value in values:
        if not ty.is_numeric(value.type):
            fail("csl-type", f"'{name}' needs a number, found '{value.type}'", node.span)
    if frame.known and all(v.known for v in values):
        from_table = KNOWN_FUNCTIONS.get(name)
        if from_table is None:
            fail("csl-comptime", f"'{name}' is not available at compile time", node.span)
        return Val(kind, each(partial(from_table, kind), *(v.v for v in values)))
    return Val(kind, ir.Runtime(kind, name, [an.code(v) for v in values]), False)


def _initial_effect(an: Analyzer, node: t.Builtin, frame: Frame, name: str) -> Val:
    """An effect at compile time: priorities are the only ones that a program starts with."""
    if name not in ("task_priority", "thread_priority"):
        fail("csl-comptime", f"'{name}' is not available at compile time", node.span)
    values = [int(an.known(arg, frame).v) for arg in node.args[2:]]
    if name == "task_priority":
        is_data, number, high = values
        an.unit.local_settings.append((task_priority_word(is_data, number), high))
    else:
        an.unit.local_settings.append((THREAD_PRIORITY, values[0]))
    return Val(ty.VOID, None)


@builtin("sim_effect", args=(2, 10))
def _sim_effect(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: ``@sim_effect("name", T, args...)``, an effect with a result of type T."""
    name = an.known(node.args[0], frame).v
    kind = an.type_from(node.args[1], frame)
    if frame.known:
        return _initial_effect(an, node, frame, name)
    args = []
    for value in an.all_in_order(node.args[2:], frame):
        if value.type == ty.STRING:
            value = Val(ty.U16, an.unit.string(value.v))
        if value.type == ty.COMPTIME_INT:
            value = coerce(value, ty.I32, node.span)
        args.append(an.code(value))
    dst = None if kind == ty.VOID else an.unit.temp(kind)
    an.emit(frame, ir.Effect(an.place_of(node), dst, name, args))
    return VOID if dst is None else Val(kind, ir.Local(kind, dst), False)


@builtin("sim_present", args=(1, 1))
def _sim_present(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: a struct without its void fields."""
    fields = an.eval(node.args[0], frame).v
    present = {name: v for name, v in fields.items() if v.type != ty.VOID}
    return Val(ty.STRUCT, present, all(v.known for v in present.values()))


@builtin("sim_port", args=(2, 2))
def _sim_port(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: declare that the host streams on this color."""
    an.unit.memcpy_ports[an.number(node.args[0], frame)] = an.known(node.args[1], frame).v
    return VOID


@builtin("sim_trace_buffer", args=(2, 2))
def _sim_trace(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: declare the trace buffer of ``<debug>`` under its key."""
    key = an.known(node.args[0], frame).v
    an.unit.trace_buffers[key] = an.number(node.args[1], frame)
    return VOID


@builtin("sim_error", args=(1, 1))
def _sim_error(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: refuse a use with a message."""
    fail("csl-unsupported", an.known(node.args[0], frame).v, node.span)


KNOWN_FUNCTIONS: dict[str, Any] = {}  # filled by builtins.mathematics


@builtin("sim_format", args=(2, 2))
def _sim_format(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """Library only: print a format string with ``{d} {X} {b} {f}`` holes."""
    text = an.known(node.args[0], frame).v.replace("{{", "\0")
    args = list(an.eval(node.args[1], frame).v.values())
    pieces = [p.replace("\0", "{") for p in re.split(r"\{(\w*)\}", text)]
    if len(args) != len(pieces) // 2:
        fail(
            "csl-type", f"the format has {len(pieces) // 2} holes for {len(args)} values", node.span
        )
    names = {"d": "print_number", "": "print_number", "X": "print_hex", "x": "print_hex",
             "b": "print_binary", "f": "print_float"}  # fmt: skip
    for position, piece in enumerate(pieces):
        if position % 2:
            value = args[position // 2]
            if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
                value = coerce(value, ty.I32 if ty.is_int(value.type) else ty.F32, node.span)
            name = "print_float" if ty.is_float(value.type) else names.get(piece, "print_number")
            codes = [an.code(value)]
            if name in ("print_hex", "print_binary"):
                bits = 8 * ty.size_of(value.type)
                digits = bits // 4 if name == "print_hex" else bits
                codes.append(ir.Const(ty.U16, digits))
        elif piece:
            name, codes = "print_string", [ir.Const(ty.U16, an.unit.string(piece))]
        else:
            continue
        an.emit(frame, ir.Effect(an.place_of(node), None, name, codes))
    return VOID
