"""Builtins that make and edit data structure descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshc.sim import ir
from meshc.sim.descriptors import FabIn, FabOut, Mem
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins.arguments import (
    check_id,
    check_names,
    chosen,
    fields_of,
    flag,
    priority_level,
    routable,
)
from meshc.sim.sema.builtins.values import VOID
from meshc.sim.sema.convert import offset_by, scaled
from meshc.sim.sema.csl_types import Array, Pointer, Type
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.values import Cell, Frame, LocalPlace, MemPlace, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

_FIELDS = {
    ty.MEM1D: ("tensor_access", "base_address", "extent", "stride", "offset",
               "wavelet_index_offset"),
    ty.MEM4D: ("tensor_access", "base_address", "extent", "stride", "offset",
               "wavelet_index_offset"),
    ty.CIRCBUF: ("base_address", "extent", "stride", "offset", "start_address", "end_address"),
    ty.FABIN: ("fabric_color", "extent", "input_queue", "simd_mode", "priority",
               "control_transform"),
    ty.FABOUT: ("fabric_color", "extent", "output_queue", "control", "wavelet_index_offset",
                "advance_switch", "simd_mode", "zero", "control_transform", "priority"),
}  # fmt: skip


@builtin("get_dsd", args=(2, 2))
def _get_dsd(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    if kind not in _FIELDS:
        fail("csl-type", f"'{kind}' is no kind of DSD", node.span)
    if kind == ty.CIRCBUF:
        fail(
            "csl-unsupported",
            "circbuf_dsd is not supported by the simulator: it would take operands that go on at "
            "the start of a buffer where they pass its end",
            node.span,
        )
    literal = node.args[1]
    fields: dict[str, Val] = {}
    access = None
    if isinstance(literal, t.StructLit) and literal.type is None:
        given = dict(zip(map(str, literal.names), literal.values, strict=True))
        access = next((e for e in given.values() if isinstance(e, t.TensorAccess)), None)
        given = {n: e for n, e in given.items() if not isinstance(e, t.TensorAccess)}
        values = an.all_in_order(list(given.values()), frame)
        fields = dict(zip(given, values, strict=True))
    else:
        whole = an.eval(literal, frame)
        if whole.type != ty.STRUCT:
            fail("csl-type", f"expected a struct, found '{whole.type}'", literal.span)
        fields = whole.v
    for name in fields:
        if name not in _FIELDS[kind]:
            fail("csl-unknown-name", f"{kind} has no field '.{name}'", node.span)
    if flag(fields, "control_transform", node.span):
        fail("csl-unsupported", "'.control_transform' is not supported by the simulator", node.span)
    if kind == ty.FABIN:
        return _fabin(an, fields, node.span)
    if kind == ty.FABOUT:
        return _fabout(an, fields, node.span)
    indexed = flag(fields, "wavelet_index_offset", node.span)
    if access is not None:
        return _from_access(an, access, indexed, kind, frame)
    if kind == ty.MEM4D:
        return _explicit_4d(an, fields, indexed, node.span)
    return _explicit_1d(an, fields, indexed, kind, node.span)


_SIMD_MODES = {"simd_off": 0, "simd_32": 32, "simd_64": 64, "simd_max": 64, "simd_128": 64,
               "simd_32_or_64": 64}  # fmt: skip


def _simd(fields: dict[str, Val], span: Span) -> int:
    if "simd_mode" not in fields:
        return 0
    mode = chosen(fields["simd_mode"], _SIMD_MODES, "simd_off", "SIMD mode", span)
    return _SIMD_MODES[mode]


def _priority(fields: dict[str, Val], span: Span) -> int:
    value = fields.get("priority")
    return 0 if value is None else priority_level(value, span)


_ID_FIELDS = {
    "fabric_color": (ty.COLOR, 64),
    "input_queue": (ty.INPUT_QUEUE, 8),
    "output_queue": (ty.OUTPUT_QUEUE, 8),
}


def _number(fields: dict[str, Val], name: str, default: int, span: Span) -> ir.Expr:
    if name not in fields:
        return ir.Const(ty.I16, default)
    value = fields[name]
    kind = _ID_FIELDS.get(name)
    if kind is not None:
        check_id(value, *kind, f"'.{name}'", span)
    elif not ty.is_int(value.type):
        fail("csl-type", f"'.{name}' must be an integer, not '{value.type}'", span)
    elif value.known and not -0x8000 <= value.v <= 0xFFFF:
        fail("csl-range", f"'.{name}' is {value.v}, which 16 bits do not hold", span)
    if value.known:
        return ir.Const(ty.I32, int(value.v))
    code: ir.Expr = value.v
    return code


def _descriptor(kind: Type, name: str, args: list[ir.Expr], build: Any) -> Val:
    """A known descriptor when all its parts are known, else code that makes one."""
    if all(isinstance(a, ir.Const) for a in args):
        return Val(kind, build(*(a.value for a in args if isinstance(a, ir.Const))))
    return Val(kind, ir.Runtime(kind, name, args), False)


def _check_color(fields: dict[str, Val], span: Span) -> None:
    color = fields.get("fabric_color")
    if color is not None and color.known and isinstance(color.v, int):
        routable(color.v, span)


def _fabin(an: Analyzer, fields: dict[str, Val], span: Span) -> Val:
    _check_color(fields, span)
    queue = _number(fields, "input_queue", -1, span)
    if isinstance(queue, ir.Const) and queue.value >= 0:
        an.unit.in_queues_used.setdefault(queue.value, span)
    args = [
        _number(fields, "fabric_color", -1, span),
        _number(fields, "extent", 0x7FFF, span),
        queue,
        ir.Const(ty.U16, _simd(fields, span)),
        ir.Const(ty.U16, _priority(fields, span)),
    ]
    return _descriptor(ty.FABIN, "fabin", args, FabIn)


def _fabout(an: Analyzer, fields: dict[str, Val], span: Span) -> Val:
    zero = fields_of(fields.get("zero"), span)
    check_names(zero, ("first_source", "second_source"), "'.zero'", span)
    zero_bits = flag(zero, "first_source", span) | 2 * flag(zero, "second_source", span)
    _check_color(fields, span)
    queue = _number(fields, "output_queue", -1, span)
    if isinstance(queue, ir.Const) and queue.value >= 0:
        an.unit.out_queues_used.setdefault(queue.value, span)
    args = [
        _number(fields, "fabric_color", -1, span),
        _number(fields, "extent", 1, span),
        queue,
        ir.Const(ty.BOOL, flag(fields, "control", span)),
        ir.Const(ty.BOOL, flag(fields, "wavelet_index_offset", span)),
        ir.Const(ty.BOOL, flag(fields, "advance_switch", span)),
        ir.Const(ty.U16, _simd(fields, span)),
        ir.Const(ty.U16, zero_bits),
        ir.Const(ty.U16, _priority(fields, span)),
    ]
    return _descriptor(ty.FABOUT, "fabout", args, FabOut)


def element_of(kind: Type, span: Span) -> Type:
    """The scalar a base address points at."""
    if not isinstance(kind, Pointer):
        fail("csl-type", f"a base address must be a pointer, found '{kind}'", span)
    element = kind.target
    while isinstance(element, Array):
        element = element.element
    return element


def _base(an: Analyzer, fields: dict[str, Val], span: Span) -> tuple[ir.Expr, int]:
    if "base_address" not in fields:
        fail("csl-type", "the DSD needs '.tensor_access' or '.base_address'", span)
    base = fields["base_address"]
    if isinstance(base.type, Array):
        base = Val(Pointer(False, False, base.type), an.code(base).value  # type: ignore[attr-defined]
                   if base.known else base.v, base.known)  # fmt: skip
    size = ty.size_of(element_of(base.type, span))
    addr = ir.Const(ty.U16, base.v) if base.known else base.v
    offset = _number(fields, "offset", 0, span)
    return offset_by(addr, scaled(offset, size)), size


def _explicit_1d(
    an: Analyzer, fields: dict[str, Val], indexed: bool, kind: Type, span: Span
) -> Val:
    addr, size = _base(an, fields, span)
    if "extent" not in fields:
        fail("csl-type", "the DSD needs '.extent'", span)
    extent, stride = fields["extent"], fields.get("stride")
    for value in (extent, stride):
        if value is not None and value.type == ty.STRUCT:
            return _explicit_4d(an, fields, indexed, span)
    args = [
        addr,
        _number(fields, "extent", 1, span),
        _number(fields, "stride", 1, span),
        ir.Const(ty.U16, size),
        ir.Const(ty.BOOL, indexed),
    ]
    return _descriptor(kind, "mem1d", args, make_mem1d)


def make_mem1d(addr: int, n: int, stride: int, esize: int, indexed: bool) -> Mem:
    """A one-dimensional descriptor; ``stride`` counts elements."""
    return Mem(addr & 0xFFFF, n & 0xFFFF, stride * esize, esize, indexed)


def _explicit_4d(an: Analyzer, fields: dict[str, Val], indexed: bool, span: Span) -> Val:
    """Extents stand outermost first, strides innermost first as deltas between steps."""
    addr, size = _base(an, fields, span)
    extents = [an.as_number(v, span) for v in _list(fields.get("extent"), span)]
    deltas = [an.as_number(v, span) for v in _list(fields.get("stride"), span)]
    deltas = deltas or [1]
    if len(extents) > 4 or len(deltas) > len(extents):
        fail("csl-type", f"a DSD of {len(extents)} dimensions with {len(deltas)} strides", span)
    deltas += [1] * (len(extents) - len(deltas))
    dims: list[tuple[int, int]] = []
    travelled = 0
    for extent, delta in zip(reversed(extents), deltas, strict=True):
        stride = delta + travelled
        dims.insert(0, (extent, stride * size))
        travelled += (extent - 1) * stride
    total = 1
    for extent in extents:
        total *= extent
    if isinstance(addr, ir.Const):
        return Val(ty.MEM4D, Mem(addr.value, total, 0, size, indexed, tuple(dims)))
    shape = ir.Const(ty.MEM4D, Mem(0, total, 0, size, indexed, tuple(dims)))
    return Val(ty.MEM4D, ir.Runtime(ty.MEM4D, "set_base", [shape, addr, _size(size)]), False)


def _size(size: int) -> ir.Const:
    return ir.Const(ty.U16, size)


def _list(value: Val | None, span: Span) -> list[Val]:
    if value is None:
        return []
    if isinstance(value.v, dict):
        return list(value.v.values())
    if isinstance(value.v, list) and isinstance(value.type, Array):
        return [Val(value.type.element, v) for v in value.v]
    return [value]


# --- tensor access ---


def _from_access(
    an: Analyzer, node: t.TensorAccess, indexed: bool, kind: Type, frame: Frame
) -> Val:
    if not isinstance(node.access, t.Index):
        fail("csl-type", "a tensor access must index an array", node.access.span)
    extents = [an.number(e, frame) for e in node.extents]
    if len(extents) != len(node.variables):
        fail("csl-type", "a tensor access needs one extent per variable", node.span)
    inside = Frame(frame.module, False, frame.names, addressed=frame.addressed)
    inside.out = frame.out
    addr, array = _accessed(an, node.access.base, inside)
    dims = array.dims if array is not None else (0,)
    element = array.element if array is not None else ty.U16
    size = ty.size_of(element)
    if len(node.access.indices) != len(dims):
        fail("csl-type", f"the array needs {len(dims)} indices", node.access.span)
    constant, factors = 0, [0] * len(extents)
    for index, extent in zip(node.access.indices, dims, strict=True):
        base, slopes = _affine(an, index, node.variables, extents, frame)
        constant = constant * extent + base if constant else base
        factors = [f * extent + s for f, s in zip(factors, slopes, strict=True)]
    addr = offset_by(addr, (constant * size) & 0xFFFF)
    if isinstance(addr, ir.Const):
        addr = ir.Const(ty.U16, addr.value & 0xFFFF)
    n = 1
    for extent in extents:
        n *= extent
    if len(extents) == 1:
        shape = Mem(0, n & 0xFFFF, factors[0] * size, size, indexed)
    else:
        strides = tuple((e, f * size) for e, f in zip(extents, factors, strict=True))
        shape = Mem(0, n, 0, size, indexed, strides)
    if isinstance(addr, ir.Const):
        whole = Mem(addr.value, shape.n, shape.stride, size, indexed, shape.dims)
        return Val(kind, whole)
    code = ir.Runtime(kind, "set_base", [ir.Const(kind, shape), addr, _size(size)])
    return Val(kind, code, False)


def _accessed(an: Analyzer, node: t.Expr, frame: Frame) -> tuple[ir.Expr, Any]:
    """Address and array type of what a tensor access indexes."""
    pointer = an.peek_type(node, frame)
    if isinstance(pointer, Pointer):
        value = an.eval(node, frame)
        target = pointer.target
        if not isinstance(target, Array) or pointer.many:
            target = Array((0x7FFF,), target)
        return (ir.Const(ty.U16, value.v) if value.known else value.v), target
    place = an.place(node, frame)
    if isinstance(place, LocalPlace) or not isinstance(place, MemPlace):
        fail("csl-type", "a tensor access needs an array in memory", node.span)
    if not isinstance(place.type, Array):
        fail("csl-type", f"a value of type '{place.type}' cannot be indexed", node.span)
    return place.addr, place.type


def _affine(
    an: Analyzer, node: t.Expr, variables: list[str], extents: list[int], frame: Frame
) -> tuple[int, list[int]]:
    """Constant and slopes of an index expression; checked where the variables are largest."""

    def at(point: list[int]) -> int:
        scope = {v: Cell(ty.COMPTIME_INT, p) for v, p in zip(variables, point, strict=True)}
        inner = Frame(frame.module, True, [*frame.names, scope])
        return an.number(node, inner)

    zero = [0] * len(variables)
    base = at(zero)
    slopes = []
    for position in range(len(variables)):
        unit = list(zero)
        unit[position] = 1
        slopes.append(at(unit) - base)
    last = [max(extent - 1, 0) for extent in extents]
    alone = [[n if i == v else 0 for i, n in enumerate(last)] for v in range(len(last))]
    for point in ([2] * len(variables), last, *alone):
        if at(point) != base + sum(n * slope for n, slope in zip(point, slopes, strict=True)):
            fail("csl-type", "a tensor access must be affine in its variables", node.span)
    return base, slopes


# --- edits ---


@builtin("set_dsd_base_addr", args=(2, 2))
def _set_base(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    dsd, base = _edited(an, node, frame, lambda: _new_base(an, node.args[1], frame))
    size = ty.size_of(element_of(base.type, node.span))
    code = ir.Const(ty.U16, base.v) if base.known else base.v
    _only_memory(dsd, node)
    return _edit(dsd, "set_base", [code, _size(size)])


def _new_base(an: Analyzer, node: t.Expr, frame: Frame) -> Val:
    """A pointer, or the address of an array."""
    if not isinstance(node, t.Name | t.Field | t.Index):
        return an.eval(node, frame)
    inside = Frame(frame.module, False, frame.names)
    inside.out = frame.out
    if isinstance(an.without_code(inside, node).type, Pointer):
        return an.eval(node, inside)
    place = an.place(node, inside)
    if not isinstance(place, MemPlace):
        return an.eval(node, inside)
    kind = Pointer(False, False, place.type)
    if isinstance(place.addr, ir.Const):
        return Val(kind, place.addr.value)
    return Val(kind, place.addr, False)


@builtin("set_dsd_length", "set_dsd_stride", args=(2, 2))
def _set_length(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = ty.U16 if node.name == "set_dsd_length" else ty.I16
    dsd, value = _edited(an, node, frame, lambda: an.eval(node.args[1], frame, kind))
    if not ty.is_int(value.type):
        fail("csl-type", f"@{node.name} needs an integer, found '{value.type}'", node.span)
    if dsd.type in (ty.MEM4D, ty.FIFO):
        fail("csl-type", f"@{node.name} does not take a '{dsd.type}'", node.span)
    if node.name == "set_dsd_stride":
        _only_memory(dsd, node)
    code = ir.Const(ty.I32, value.v) if value.known else value.v
    return _edit(dsd, node.name[4:], [code])


@builtin("increment_dsd_offset", args=(3, 3))
def _increment(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    dsd, value = _edited(an, node, frame, lambda: an.eval(node.args[1], frame, ty.I16))
    if not ty.is_int(value.type):
        fail("csl-type", f"the offset must be an integer, not '{value.type}'", node.span)
    kind = an.type_from(node.args[2], frame)
    _only_memory(dsd, node)
    code = ir.Const(ty.I32, value.v) if value.known else value.v
    return _edit(dsd, "inc_offset", [code, _size(ty.size_of(kind))])


def _only_memory(dsd: Val, node: t.Builtin) -> None:
    if dsd.type not in (ty.MEM1D, ty.MEM4D):
        fail("csl-type", f"@{node.name} does not take a '{dsd.type}'", node.span)


def _edited(
    an: Analyzer, node: t.Builtin, frame: Frame, change: Callable[[], Val]
) -> tuple[Val, Val]:
    """A DSD, and what a builtin puts into it."""

    def dsd() -> Val:
        value = an.eval(node.args[0], frame)
        if value.type not in ty.DSDS:
            fail("csl-type", f"@{node.name} needs a DSD, found '{value.type}'", node.span)
        return value

    first, second = an.in_order(frame, node, (dsd, change))
    return first, second


def _edit(dsd: Val, name: str, args: list[ir.Expr]) -> Val:
    known = dsd.known and all(isinstance(a, ir.Const) for a in args)
    if known:
        values = [a.value for a in args if isinstance(a, ir.Const)]
        return Val(dsd.type, EDITS[name](dsd.v, *values))
    base = ir.Const(dsd.type, dsd.v) if dsd.known else dsd.v
    return Val(dsd.type, ir.Runtime(dsd.type, name, [base, *args]), False)


def set_base(dsd: Mem, addr: int, esize: int) -> Mem:
    """New base; offsets are forgotten and the stride keeps its element count."""
    stride = dsd.stride if dsd.esize == esize else dsd.stride // max(1, dsd.esize) * esize
    return Mem(addr & 0xFFFF, dsd.n, stride, esize, dsd.indexed, dsd.dims)


def dsd_length(dsd: Any, n: int) -> Any:
    """New extent."""
    n &= 0xFFFF
    if isinstance(dsd, Mem):
        return Mem(dsd.addr, n, dsd.stride, dsd.esize, dsd.indexed)
    if isinstance(dsd, FabIn):
        return FabIn(dsd.color, n, dsd.queue, dsd.simd, dsd.priority)
    if isinstance(dsd, FabOut):
        return FabOut(dsd.color, n, dsd.queue, dsd.control, dsd.indexed, dsd.advance,
                      dsd.simd, dsd.zero, dsd.priority)  # fmt: skip
    return dsd


def dsd_stride(dsd: Mem, stride: int) -> Mem:
    """New stride in elements."""
    return Mem(dsd.addr, dsd.n, stride * dsd.esize, dsd.esize, dsd.indexed)


def inc_offset(dsd: Mem, count: int, size: int) -> Mem:
    """Move the base by ``count`` elements of ``size`` bytes."""
    return Mem((dsd.addr + count * size) & 0xFFFF, dsd.n, dsd.stride, dsd.esize, dsd.indexed,
               dsd.dims)  # fmt: skip


EDITS: dict[str, Any] = {
    "set_base": set_base,
    "dsd_length": dsd_length,
    "dsd_stride": dsd_stride,
    "inc_offset": inc_offset,
}


@builtin("set_dsr_base_addr", args=(2, 2))
def _set_dsr_base(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    dsr = an.known(node.args[0], frame)
    value = an.eval(node.args[1], frame)
    if dsr.type not in ty.DSRS:
        fail("csl-type", f"@{node.name} needs a register, found '{dsr.type}'", node.span)
    element_of(value.type, node.span)
    bank = str(dsr.type)[4:]
    args = [ir.Const(ty.U16, ("dest", "src0", "src1").index(bank)), ir.Const(ty.U16, dsr.v)]
    addr = ir.Const(ty.U16, value.v) if value.known else value.v
    an.emit(frame, ir.Effect(an.place_of(node), None, "set_dsr_base", [*args, addr]))
    return VOID
