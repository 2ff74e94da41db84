"""Known values as the bytes that they are in memory, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshc.sim.exact_numbers import from_bits, to_bits
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Array, Enum, Struct, Type
from meshc.sim.sema.values import CellRef, FnVal, Val
from meshc.support.diagnostics import fail


def bytes_of(kind: Type, value: Any, functions: Sequence[str] = ()) -> bytes:
    """The bytes of a value. A pointer to a function is its place among ``functions``, counted from
    1."""
    if isinstance(value, FnVal | CellRef):
        fail("csl-comptime", f"the address of '{kind}' is not known at compile time")
    if isinstance(value, str):
        return (functions.index(value) + 1).to_bytes(2, "little")
    if isinstance(kind, Array):
        size = ty.size_of(kind)
        if not any(value):
            return bytes(size)
        return b"".join(bytes_of(kind.element, v, functions) for v in value)
    if isinstance(kind, Struct):
        if kind.packed:
            return packed_bits(kind, value).to_bytes(ty.size_of(kind), "little")
        data = bytearray(ty.size_of(kind))
        for name, part in value.items():
            field_type, offset = kind.field(name) or (ty.U16, 0)
            raw = bytes_of(field_type, part.v, functions)
            data[offset : offset + len(raw)] = raw
        return bytes(data)
    base = kind.base if isinstance(kind, Enum) else kind
    return to_bits(base, value).to_bytes(8, "little")[: ty.size_of(base)]


def packed_bits(kind: Type, value: Any) -> int:
    """The bits of a value as they stand in a packed struct, the lowest first."""
    if isinstance(kind, Struct):
        fields = ((part, *_bit_field(kind, name)) for name, part in value.items())
        return sum(packed_bits(field, part.v) << shift for part, field, shift in fields)
    base = kind.base if isinstance(kind, Enum) else kind
    return to_bits(base, value) & ((1 << ty.bits_of(kind)) - 1)


def _bit_field(kind: Struct, name: str) -> tuple[Type, int]:
    found = kind.bit_field(name)
    assert found is not None
    return found


def value_of(kind: Type, data: bytes) -> Any:
    """The known value whose bytes are ``data``, of a type without pointers to functions."""
    if isinstance(kind, Array):
        size = ty.size_of(kind.element)
        return [value_of(kind.element, data[i * size : (i + 1) * size]) for i in range(kind.count)]
    if isinstance(kind, Struct):
        if kind.packed:
            return value_of_bits(kind, int.from_bytes(data[: ty.size_of(kind)], "little"))
        parts = {}
        for name, field_type in kind.stored:
            _, offset = kind.field(name) or (field_type, 0)
            parts[name] = Val(field_type, value_of(field_type, data[offset:]))
        return parts
    base = kind.base if isinstance(kind, Enum) else kind
    number = int.from_bytes(data[: ty.size_of(base)], "little")
    return from_bits(base, number & ((1 << ty.bits_of(kind)) - 1))


def value_of_bits(kind: Type, bits: int) -> Any:
    """The inverse of :func:`packed_bits`; bits above the value are left out."""
    if isinstance(kind, Struct):
        parts = {}
        for name, field_type in kind.stored:
            _, shift = _bit_field(kind, name)
            parts[name] = Val(field_type, value_of_bits(field_type, bits >> shift))
        return parts
    base = kind.base if isinstance(kind, Enum) else kind
    return from_bits(base, bits & ((1 << ty.bits_of(kind)) - 1))
