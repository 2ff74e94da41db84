"""The arithmetic of vector operations on NumPy arrays. IEEE, round to nearest even, wraparound.

NumPy has no bf16: arrays of it are bit patterns (u16), which are widened to f32 before and rounded
behind an operation; scalars are Python's floats, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshc.sim.exact_numbers import float_bits, float_from_bits
from meshc.sim.sema.csl_types import BF16, F16, F32, I16, U16, U32, Type
from meshc.sim.vector_ops import OPS, OpSpec

DTYPES: dict[Type, np.dtype[Any]] = {
    U16: np.dtype("<u2"),
    U32: np.dtype("<u4"),
    I16: np.dtype("<i2"),
    F16: np.dtype("<f2"),
    F32: np.dtype("<f4"),
    BF16: np.dtype("<u2"),
}

BY_NAME: dict[str, np.dtype[Any]] = {
    "u8": np.dtype("<u1"), "i8": np.dtype("<i1"), "u16": np.dtype("<u2"), "i16": np.dtype("<i2"),
    "u32": np.dtype("<u4"), "i32": np.dtype("<i4"), "u64": np.dtype("<u8"),
    "i64": np.dtype("<i8"), "f16": np.dtype("<f2"), "f32": np.dtype("<f4"),
    "bf16": np.dtype("<u2"),
}  # fmt: skip

Array = Any

# Public programs that compare their result with NumPy to the last bit need two roundings in
# multiply-accumulate, although a library text calls the operation fused.
FUSED = False


def fma32(a: Array, b: Array, c: Array) -> Array:
    """``a + b * c`` in f32 with one rounding.

    The product is exact in f64. Rounding the f64 sum to f32 differs from a single rounding only
    when the f64 sum is inexact and lies half way between two f32 values; those are corrected by
    moving the sum one ulp toward the exact value.
    """
    x = np.asarray(a, np.float64)
    p = np.asarray(b, np.float64) * np.asarray(c, np.float64)
    s = np.asarray(x + p)
    half = (s.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    if half.any():
        s = s.copy()
        back = s - x
        error = (x - (s - back)) + (p - back)
        fix = half & (error != 0) & np.isfinite(s)
        toward = np.where(error > 0, np.inf, -np.inf)
        s = np.where(fix, np.nextafter(s, toward), s)
    return s.astype(np.float32)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """``a + b * c`` in f16 with one rounding; the f64 sum is exact wherever it matters."""
    p = np.asarray(b, np.float64) * np.asarray(c, np.float64)
    return (np.asarray(a, np.float64) + p).astype(np.float16)


def _mac(dtype: type[Any], fused: Callable[..., Array]) -> Callable[..., Array]:
    def apply(a: Array, b: Array, c: Array) -> Array:
        if FUSED:
            return fused(a, b, c)
        return np.asarray(a, dtype) + np.asarray(b, dtype) * np.asarray(c, dtype)

    return apply


def _shift(name: str) -> Callable[[Array, Array], Array]:
    def apply(a: Array, amount: Array) -> Array:
        wide = np.asarray(a, np.int64)
        count = np.minimum(np.asarray(amount, np.int64), 31)
        if name == "sll16":
            return ((wide << count) & 0xFFFF).astype(np.uint16)
        if name == "sar16":
            wide = np.asarray(np.asarray(a, np.uint16).astype(np.int16), np.int64)
        return ((wide >> count) & 0xFFFF).astype(np.uint16)

    return apply


def _count(name: str) -> Callable[[Array], Array]:
    def one(value: int) -> int:
        if name == "popcnt":
            return value.bit_count()
        if name == "clz":
            return 16 - value.bit_length()
        return 16 if value == 0 else (value & -value).bit_length() - 1

    def apply(a: Array) -> Array:
        return np.array([one(int(v)) for v in np.atleast_1d(a)], np.uint16)

    return apply


def _scale(dtype: type[Any]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, amount: Array) -> Array:
        scaled = np.ldexp(np.asarray(a, np.float64), np.asarray(amount, np.int32))
        return np.asarray(scaled).astype(dtype)

    return apply


def _norm(dtype: type[Any]) -> Callable[[Array], Array]:
    def apply(a: Array) -> Array:
        mantissa, _ = np.frexp(np.asarray(a, np.float64))
        return np.asarray(mantissa * 2).astype(dtype)

    return apply


def _to_int16(a: Array) -> Array:
    wide = np.nan_to_num(np.rint(np.asarray(a, np.float64)), posinf=32767, neginf=-32768)
    return np.clip(wide, -32768, 32767).astype(np.int16)


def _max(a: Array, b: Array) -> Array:
    """The larger one, the first of equal ones; NumPy's own choice between zeros is not defined."""
    return np.where((a >= b) | np.isnan(b), a, b)


def _wrapped(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        return (function(np.asarray(a, np.int64), np.asarray(b, np.int64)) & 0xFFFF).astype(
            np.uint16
        )

    return apply


def _same(a: Array) -> Array:
    return a


def _typed(dtype: type[Any], function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(*args: Array) -> Array:
        return function(*(np.asarray(a, dtype) for a in args))

    return apply


COMPUTE: dict[str, Callable[..., Array]] = {
    "mov16": _same, "mov32": _same, "fmovh": _same, "fmovs": _same,
    "add16": _wrapped(np.add), "sub16": _wrapped(np.subtract), "and16": _wrapped(np.bitwise_and),
    "or16": _wrapped(np.bitwise_or), "xor16": _wrapped(np.bitwise_xor),
    "addc16": _wrapped(np.add),
    "sll16": _shift("sll16"), "slr16": _shift("slr16"), "sar16": _shift("sar16"),
    "popcnt": _count("popcnt"), "clz": _count("clz"), "ctz": _count("ctz"),
    "faddh": _typed(np.float16, np.add), "fsubh": _typed(np.float16, np.subtract),
    "fmulh": _typed(np.float16, np.multiply), "fmaxh": _typed(np.float16, _max),
    "fnegh": _typed(np.float16, np.negative), "fabsh": _typed(np.float16, np.abs),
    "fadds": _typed(np.float32, np.add), "fsubs": _typed(np.float32, np.subtract),
    "fmuls": _typed(np.float32, np.multiply), "fmaxs": _typed(np.float32, _max),
    "fnegs": _typed(np.float32, np.negative), "fabss": _typed(np.float32, np.abs),
    "fmach": _mac(np.float16, fma16), "fmacs": _mac(np.float32, fma32),
    "faddhs": _typed(np.float32, np.add), "fmachs": _mac(np.float32, fma32),
    "fnormh": _norm(np.float16), "fnorms": _norm(np.float32),
    "fscaleh": _scale(np.float16), "fscales": _scale(np.float32),
    "fh2s": _typed(np.float32, _same),
    "fs2h": lambda a: np.asarray(a, np.float32).astype(np.float16),
    "fh2xp16": _to_int16, "fs2xp16": _to_int16,
    "xp162fh": lambda a: np.asarray(a, np.int16).astype(np.float16),
    "xp162fs": lambda a: np.asarray(a, np.int16).astype(np.float32),
}  # fmt: skip


def widened(patterns: Array) -> Array:
    """The f32 numbers of bit patterns of bf16."""
    return (np.asarray(patterns, np.uint32) << 16).view(np.float32)


def rounded(numbers: Array) -> Array:
    """The bit patterns of the bf16 numbers that are nearest to f32 ones, ties to even."""
    bits = np.asarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), bits >> 16 | 0x40, nearest).astype(np.uint16)


def number_of(kind: str, element: Any) -> Any:
    """The number that an element of memory of the type ``kind`` stands for."""
    return float_from_bits(BF16, element) if kind == "bf16" else element


def element_of(kind: str, number: Any) -> Any:
    """What memory of the type ``kind`` holds for a number."""
    return float_bits(BF16, float(number)) if kind == "bf16" else number


def _in_bf16(spec: OpSpec) -> Callable[..., Array]:
    """The operation where 16-bit floats are bf16: computed in f32, of whose sums and products the
    right bf16 numbers come by rounding; a product that is added is rounded by itself."""
    name, result = spec.builtin, spec.types[0]
    if name == "fmovh":
        return lambda a: element_of("bf16", a) if isinstance(a, float | int) else a
    function = COMPUTE["fmacs" if name == "fmach" else _WIDE.get(name, name)]

    def number(a: Array, kind: Type) -> Array:
        if kind != BF16:
            return a
        if isinstance(a, float | int):
            return np.float32(float_from_bits(BF16, float_bits(BF16, float(a))))
        return widened(a)

    def apply(*args: Array) -> Array:
        given = [number(a, kind) for a, kind in zip(args, spec.types[1:], strict=True)]
        if name == "fmach":
            given = [given[0], widened(rounded(np.multiply(given[1], given[2]))), np.float32(1)]
        found = function(*given)
        return rounded(found) if result == BF16 else found

    return apply


_WIDE = {
    "faddh": "fadds", "fsubh": "fsubs", "fmulh": "fmuls", "fmaxh": "fmaxs",
    "fnegh": "fnegs", "fabsh": "fabss", "fnormh": "fnorms", "fscaleh": "fscales", "fs2h": "fh2s",
    "fh2xp16": "fs2xp16", "xp162fh": "xp162fs",
}  # fmt: skip
"""The operations on f32 that do in f32 what those on 16-bit floats do."""

COMPUTE |= {name: _in_bf16(spec) for name, spec in OPS.items() if BF16 in spec.types}


def _quick_mac(a: Array, b: Array, c: Array) -> Array:
    return a + b * c


# The same arithmetic without conversions, for operands that have the right types: at least one
# array of the operation's type, scalars as Python floats.
QUICK: dict[str, Callable[..., Array]] = {
    "faddh": np.add, "fsubh": np.subtract, "fmulh": np.multiply,
    "fadds": np.add, "fsubs": np.subtract, "fmuls": np.multiply,
}  # fmt: skip
if not FUSED:
    QUICK |= {"fmacs": _quick_mac, "fmach": _quick_mac}
