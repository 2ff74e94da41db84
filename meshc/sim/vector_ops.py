"""The table of vector operations: operand types and lanes per cycle.

``types`` lists destination first; :mod:`meshc.sim.machine.compute` has the arithmetic. Builtins on
16-bit floats are operations on the format that the program is compiled for, ``f16`` or ``bf16``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshc.sim.sema.csl_types import BF16, F16, F32, I16, U16, U32, Float, Type


@dataclass(frozen=True)
class OpSpec:
    """``kind`` groups operations of equal speed in the cycle model; ``builtin`` is the operation's
    name in CSL."""

    name: str
    types: tuple[Type, ...]
    kind: str
    builtin: str


def _ops(kind: str, types: tuple[Type, ...], *names: str) -> dict[str, OpSpec]:
    return {name: OpSpec(name, types, kind, name) for name in names}


OPS: dict[str, OpSpec] = {
    **_ops("mov16", (U16, U16), "mov16"),
    **_ops("mov32", (U32, U32), "mov32"),
    **_ops("mov16", (F16, F16), "fmovh"),
    **_ops("mov32", (F32, F32), "fmovs"),
    **_ops("int16", (U16, U16, U16), "add16", "sub16", "and16", "or16", "xor16"),
    **_ops("addc16", (U16, U16, U16), "addc16"),
    **_ops("shift16", (U16, U16, U16), "sll16", "slr16", "sar16"),
    **_ops("count16", (U16, U16), "popcnt", "clz", "ctz"),
    **_ops("f16", (F16, F16, F16), "faddh", "fsubh", "fmulh"),
    **_ops("fmaxh", (F16, F16, F16), "fmaxh"),
    **_ops("f32", (F32, F32, F32), "fadds", "fsubs"),
    **_ops("fmuls", (F32, F32, F32), "fmuls"),
    **_ops("fmaxs", (F32, F32, F32), "fmaxs"),
    **_ops("f16", (F16, F16), "fnegh", "fabsh"),
    **_ops("f32", (F32, F32), "fnegs", "fabss"),
    **_ops("f16", (F16, F16, F16, F16), "fmach"),
    **_ops("fmacs", (F32, F32, F32, F32), "fmacs"),
    **_ops("mixed", (F32, F32, F16), "faddhs"),
    **_ops("mixed", (F32, F32, F16, F16), "fmachs"),
    **_ops("norm", (F16, F16), "fnormh"),
    **_ops("norm", (F32, F32), "fnorms"),
    **_ops("norm", (F16, F16, I16), "fscaleh"),
    **_ops("norm", (F32, F32, I16), "fscales"),
    **_ops("convert", (F32, F16), "fh2s"),
    **_ops("convert", (F16, F32), "fs2h"),
    **_ops("xp16", (I16, F16), "fh2xp16"),
    **_ops("xp16", (I16, F32), "fs2xp16"),
    **_ops("xp16", (F16, I16), "xp162fh"),
    **_ops("xp16", (F32, I16), "xp162fs"),
}
BUILTINS = tuple(OPS)
"""The operations as CSL names them."""


def _in_bf16(spec: OpSpec) -> OpSpec:
    types = tuple(BF16 if one == F16 else one for one in spec.types)
    return replace(spec, name=f"{spec.name}_bf16", types=types)


OPS |= {one.name: one for one in map(_in_bf16, [s for s in OPS.values() if F16 in s.types])}


def operation(builtin: str, half: Float) -> str:
    """The operation that ``builtin`` is where ``half`` is the format of 16-bit floats."""
    found = f"{builtin}_{half}"
    return found if found in OPS else builtin
