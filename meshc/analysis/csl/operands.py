"""Operands of microkernels of a CSL program: which are made f32 before a kernel takes them."""

from __future__ import annotations

from meshc.analysis.csl.ways import KEPT, parts_of
from meshc.analysis.csl.windows import Window
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

CACHES = ("ring_set", "ring_push", "ring_grow", "ring_oldest", "ring_drop", "mask_slots")
"""The kernels of KV caches, each of which has a state among its operands."""

_MIXED = ("copy", "gemm", "expert_gemm", "square_sum", "select_lanes", *CACHES)
"""Kernels that take operands of several types as they are."""
_WIDE = {"rope": (1,)}
"""Operands that are f32 whatever the type of the others."""
_OF_ANY_TYPE = {"rms_scale": (2,)}
"""Operands of which a kernel reads single values, whatever their type."""


def widened(op: Compute, given: list[Window]) -> list[bool]:
    """Of each operand, whether it is copied to f32 memory and the copy taken: those in f16 where
    the kernel has both types and takes one alone. A ``rope`` by angles that are kept makes its own
    f32 of each block of rows."""
    narrow = [one.dtype == DType.F16 for one in given]
    if KEPT in parts_of(op):
        return [False] * len(given)
    if op.kernel in _WIDE:
        return [yes and n in _WIDE[op.kernel] for n, yes in enumerate(narrow)]
    alike = {w.dtype for n, w in enumerate(given) if n not in _OF_ANY_TYPE.get(op.kernel, ())}
    if op.kernel in _MIXED or len(alike) == 1:
        return [False] * len(given)
    return narrow
