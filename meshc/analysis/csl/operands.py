"""Operands of microkernels of a CSL program: which are made f32 before a kernel takes them."""

from __future__ import annotations

from meshc.analysis.csl.blocks import cut
from meshc.analysis.csl.strided_windows import Window, own
from meshc.analysis.csl.ways import ACROSS, HALF, KEPT, parts_of
from meshc.ir.ops.tile import Compute

CACHES = ("ring_set", "ring_push", "ring_grow", "ring_oldest", "ring_drop", "mask_slots")
"""The kernels of KV caches, each of which has a state among its operands."""

_MIXED = (
    "copy", "dequantise", "gemm", "expert_gemm", "square_sum", "select_lanes", "first_at", *CACHES,
)  # fmt: skip
"""Kernels that take operands of several types as they are."""
_WIDE = {"rope": (1,)}
"""Operands that are f32 whatever the type of the others."""
_OF_ANY_TYPE = {"rms_scale": (2,)}
"""Operands of which a kernel reads single values, whatever their type."""


_BY_ROWS = ("row_sum", "row_max")
"""Kernels that make each row of a result of a row of an operand."""

BY_STEPS = ("exp_sub", "silu", "gelu")
"""Functions of elements that vector operations compute where the call says so (``way``), from
operands of either type."""


def widened(op: Compute, given: list[Window]) -> list[bool]:
    """Whether each operand is copied to f32 memory and the copy taken. Functions by vector
    operations and a ``rope`` by angles that are kept make their own f32 of what they take, a
    ``rope`` in f16 takes none, and maxima across rows are taken in the type of these."""
    own = op.way == ACROSS or (op.kernel == "rope" and {KEPT, HALF} & {*parts_of(op)})
    if own or (op.kernel in BY_STEPS and op.way):
        return [False] * len(given)
    return one_by_one(op, given)


def at_once(op: Compute, given: list[Window]) -> list[Window]:
    """The operands that a kernel takes at once: of one that makes rows and copies operands through
    which no DSD walks, and which it so copies by parts anyway, those of a row, whose copies take
    less memory; ``own("part")`` is its number. Of others all, and where there is one row."""
    copied = [one for one, yes in zip(given, widened(op, given), strict=True) if yes]
    if op.kernel not in _BY_ROWS or all(one.walked for one in copied):
        return given
    if given[0].dims[0].extent == 1:
        return given
    return [cut(one, 0, own("part"), 1) for one in given]


def one_by_one(op: Compute, given: list[Window]) -> list[bool]:
    """The same where elements go one by one: those of 16 bits are copied where the kernel has both
    types and takes one alone."""
    narrow = [one.dtype.half for one in given]
    if op.kernel in _WIDE:
        return [yes and n in _WIDE[op.kernel] for n, yes in enumerate(narrow)]
    alike = {w.dtype for n, w in enumerate(given) if n not in _OF_ANY_TYPE.get(op.kernel, ())}
    if op.kernel in _MIXED or len(alike) == 1:
        return [False] * len(given)
    return narrow
