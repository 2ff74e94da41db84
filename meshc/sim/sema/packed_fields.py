"""Fields of packed structs and unions: some bits of the integer that stands in memory.

The first field has the lowest bits; each takes as many as its type has, a bool one.
"""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Enum, Float, Int, Pointer, Struct, Type
from meshc.sim.sema.values import BitPlace


def unit_of(kind: Type) -> Int:
    """The integer that is read and written for a value of ``kind`` in memory."""
    return Int(8 * ty.size_of(kind), False)


def scalar_of_bits(kind: Type, bits: ir.Expr) -> ir.Expr:
    """``bits``, an unsigned integer that begins with a scalar of type ``kind``, as that scalar."""
    width = ty.bits_of(kind)
    assert isinstance(bits.type, Int)
    raw = bits if bits.type.bits == width else ir.Cast(Int(width, False), bits)
    match kind:
        case Int():
            return raw if not kind.signed else ir.Cast(kind, raw)
        case Enum():
            return ir.Bits(kind, scalar_of_bits(kind.base, raw))
        case Float() | Pointer():
            return ir.Bits(kind, raw)
    return ir.Cast(ty.BOOL, raw)


def bits_of_scalar(kind: Type, value: ir.Expr, unit: Int) -> ir.Expr:
    """A scalar as the lowest bits of ``unit``."""
    width = Int(ty.bits_of(kind), False)
    match kind:
        case Int():
            raw: ir.Expr = value if not kind.signed else ir.Cast(width, value)
        case Enum():
            return bits_of_scalar(kind.base, ir.Bits(kind.base, value), unit)
        case Float() | Pointer():
            raw = ir.Bits(width, value)
        case _:
            raw = value
    return raw if raw.type == unit else ir.Cast(unit, raw)


def placed(value: ir.Expr, place: BitPlace) -> ir.Expr:
    """What stands around ``place`` now, with ``value`` in its bits."""
    unit = place.unit
    mask = ((1 << ty.bits_of(place.type)) - 1) << place.shift
    rest = ir.Bin(unit, "&", ir.Load(unit, place.addr), ir.Const(unit, unit.high ^ mask))
    return ir.Bin(unit, "|", rest, shifted(value, place.shift))


def shifted(value: ir.Expr, shift: int) -> ir.Expr:
    """``value`` moved to higher bits."""
    return ir.Bin(value.type, "<<", value, ir.Const(ty.U16, shift)) if shift else value


def taken(place: BitPlace) -> ir.Expr:
    """An integer that begins with the bits of ``place``."""
    whole = ir.Load(place.unit, place.addr)
    if not place.shift:
        return whole
    return ir.Bin(place.unit, ">>", whole, ir.Const(ty.U16, place.shift))


def field_place(addr: ir.Expr, kind: Struct, name: str, const: bool) -> BitPlace | None:
    """The place of a field that is some bits of an integer at ``addr``; None for other fields."""
    found = kind.bit_field(name)
    if found is None:
        return None
    unit = unit_of(kind if kind.packed else found[0])
    return BitPlace(found[0], addr, unit, found[1], const)
