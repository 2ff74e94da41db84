"""What a call of a function of elements says about how it is written: the words of its way."""

from __future__ import annotations

from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

VECTOR, HALF, ANGLES, KEPT, TURNS = "vector", "half", "angles", "kept", "turns"
NEWTON, ACROSS, WHOLE = "newton", "across", "whole"
BY = "_by_"


def parts_of(op: Compute) -> list[str]:
    """What of a kernel is written by vector operations."""
    return [part for part in op.way.partition(BY)[0].split("_") if part]


def type_of_angles(op: Compute) -> DType:
    """The element type of the sines and cosines by which a ``rope`` turns lanes."""
    return DType.F16 if HALF in parts_of(op) else DType.F32


def block_of(op: Compute) -> int:
    """The rows or columns that ``op`` takes at once where their number is known only when the
    program runs; 0 where it says none."""
    block = op.way.partition(BY)[2]
    return int(block) if block.isdecimal() else 0


def goes_over(op: Compute) -> bool:
    """Whether the last block of ``op`` goes over the end of what the run says there is."""
    return WHOLE in parts_of(op)
