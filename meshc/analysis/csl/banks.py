"""Where f32 buffers begin, so that the two sources of an operation lie in different banks.

Two 32-bit sources whose addresses are equal modulo sixteen bytes are read one after the other
(vendor's appendix on performance): twice the cycles. Buffers are aligned, so sums of products begin
one element later than the rows that are multiplied and added to them. Elements of left sides are
read one by one, or beside such rows, so that sums may be left sides of other products.
"""

from __future__ import annotations

from meshc.analysis.layout.liveness import align
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View


def buffer_bytes(module: Module) -> int:
    """Bytes of a program's buffers, each aligned and begun where its bank needs it to."""
    late = shifts(module)
    sizes = (
        (b.type.bytes + late.get(b.value.name, 0) * b.type.dtype.bytes) for b in module.buffers
    )
    return sum(map(align, sizes))


def shifts(module: Module) -> dict[str, int]:
    """Elements by which a buffer begins later, for those that do."""
    sums: dict[str, None] = {}
    factors: set[str] = set()
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel == "gemm":
            names = [v.buffer.name for v in op.operands if isinstance(v, View)]
            kinds = [v.buffer_type.dtype for v in op.operands if isinstance(v, View)]
            if set(kinds) == {DType.F32}:
                sums[names[0]] = None
                factors |= set(names[2:])
    return {name: 1 for name in sums if name not in factors}
