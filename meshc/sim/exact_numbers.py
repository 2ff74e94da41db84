"""Exact scalar arithmetic of the machine: rounding to f16, bf16 and f32, truncating division."""

from __future__ import annotations

import math
import struct

import numpy as np

from meshc.sim.sema.csl_types import BF16, CB16, F16, F32, Float, Int, Type

_F32 = struct.Struct("<f")
_F16 = struct.Struct("<e")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


def round_to(kind: Type, value: float) -> float:
    """``value`` rounded to nearest even in ``kind`` (comptime_float: unchanged)."""
    if kind == F32:
        return round_f32(value)
    if kind == F16:
        return round_f16(value)
    if kind == BF16:
        return round_bf16(value)
    if kind == CB16:
        return cb16_from_bits(cb16_bits(value))
    return value


def round_f32(value: float) -> float:
    """To single precision; too large values become infinite."""
    try:
        return float(_F32.unpack(_F32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def round_f16(value: float) -> float:
    """To half precision; too large values become infinite."""
    try:
        return float(_F16.unpack(_F16.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def round_bf16(value: float) -> float:
    """To bfloat16. Rounding twice (f32 first) is avoided by rounding to odd in between."""
    if value != value or math.isinf(value):
        return value
    single = round_f32(value)
    if math.isinf(single):
        return single
    bits = int(_U32.unpack(_F32.pack(single))[0])
    if single != value:
        if abs(single) > abs(value):
            bits -= 1
        bits |= 1
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(_F32.unpack(_U32.pack(bits & 0xFFFFFFFF))[0])


# cb16: a sign, 6 bits of exponent with bias 42, 9 bits of mantissa.
_CB16_BIAS, _CB16_MANTISSA, _CB16_TOP = 42, 9, 0x7E00


def cb16_bits(value: float) -> int:
    """The pattern of ``value`` in cb16, rounded to nearest even; too large ones are infinite."""
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    if value != value:
        return sign | _CB16_TOP | 0x100
    if math.isinf(value):
        return sign | _CB16_TOP
    if value == 0:
        return sign
    fraction, exponent = math.frexp(abs(value))
    power = max(exponent - 1, 1 - _CB16_BIAS)
    units = round(math.ldexp(fraction, exponent - power + _CB16_MANTISSA))
    pattern = units + ((power + _CB16_BIAS - 1) << _CB16_MANTISSA)
    return sign | min(pattern, _CB16_TOP)


def cb16_from_bits(bits: int) -> float:
    """The value of a cb16 pattern."""
    sign = -1.0 if bits & 0x8000 else 1.0
    field, units = bits >> _CB16_MANTISSA & 0x3F, bits & 0x1FF
    if field == 0x3F:
        return math.nan if units else sign * math.inf
    units |= 0x200 if field else 0
    return sign * math.ldexp(units, max(field, 1) - _CB16_BIAS - _CB16_MANTISSA)


def float_bits(kind: Float, value: float) -> int:
    """The bit pattern of ``value`` in ``kind``."""
    if kind == CB16:
        return cb16_bits(value)
    if kind == F32:
        return int(_U32.unpack(_F32.pack(round_f32(value)))[0])
    if kind == BF16:
        return int(_U32.unpack(_F32.pack(round_bf16(value)))[0]) >> 16
    return int(_U16.unpack(_F16.pack(round_f16(value)))[0])


def float_from_bits(kind: Float, bits: int) -> float:
    """The value whose bit pattern is ``bits``."""
    if kind == CB16:
        return cb16_from_bits(bits)
    if kind == F32:
        return float(_F32.unpack(_U32.pack(bits & 0xFFFFFFFF))[0])
    if kind == BF16:
        return float(_F32.unpack(_U32.pack((bits & 0xFFFF) << 16))[0])
    return float(_F16.unpack(_U16.pack(bits & 0xFFFF))[0])


def to_bits(kind: Type, value: float | int | bool) -> int:
    """The bit pattern of a scalar of any type as a non-negative integer."""
    if isinstance(kind, Float):
        return float_bits(kind, float(value))
    if isinstance(kind, Int):
        return int(value) & ((1 << kind.bits) - 1)
    return int(value) & 0xFFFF


def from_bits(kind: Type, bits: int) -> float | int | bool:
    """The inverse of :func:`to_bits`."""
    if isinstance(kind, Float):
        return float_from_bits(kind, bits)
    return kind.wrap(bits) if isinstance(kind, Int) else bits & 0xFFFF


def int_div(a: int, b: int) -> int:
    """Division rounding toward zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def int_rem(a: int, b: int) -> int:
    """The remainder with the sign of the dividend."""
    return a - b * int_div(a, b)


def float_div(a: float, b: float) -> float:
    """IEEE division: by zero gives an infinity or NaN."""
    if b == 0:
        if a == 0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def float_to_int(kind: Int, value: float) -> int:
    """Truncation toward zero, then wraparound; NaN gives 0 and infinities saturate."""
    if value != value:
        return 0
    if math.isinf(value):
        return kind.high if value > 0 else kind.low
    return kind.wrap(int(value))


def int_to_float(kind: Type, value: int) -> float:
    """The nearest value of ``kind`` or an infinity; exact for comptime_float up to 53 bits."""
    if abs(value) >> 1024:
        return math.inf if value > 0 else -math.inf
    if kind == F32 and abs(value) > 1 << 53:
        return float(np.float32(value))
    return round_to(kind, float(value))
