"""Weights of tasks that stay quantised: the blocks in which tasks stream them."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.types import DType
from meshc.ir.values import Value

FRAGMENT_ROWS = 16
"""Rows that tensor cores multiply at once."""


@dataclass(frozen=True)
class Coded:
    """Blocks of a matrix that stays quantised: codes of this element type, which are multiplied as
    ``values``, for so many ``fragments`` of tensor cores, scales and, if ``lifted``, least numbers
    of these, ``bytes`` in all."""

    codes: DType
    values: DType
    fragments: int
    bytes: int
    lifted: bool


def coded_of(module: Module, family: task.Family, stream: Value) -> Coded | None:
    """The blocks of codes of which a stream of ``family`` brings a part, None where it brings
    numbers."""
    for op in family.regions[0].walk():
        if not isinstance(op, tile.Compute) or op.kernel != "dequantise":
            continue
        if stream in [view.buffer for view in op.views()[1:]]:
            _, codes, *parts = (view.buffer_type.dtype for view in op.views())
            group = int(str(op.params["group"]))
            bits = group * codes.bits + sum(part.bits for part in parts)
            size, fragments = bits * FRAGMENT_ROWS // 8, -(-group // FRAGMENT_ROWS)
            return Coded(codes, module.dtype(), fragments, size, len(parts) > 1)
    return None
