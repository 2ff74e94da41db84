"""Whether anybody reads what lies behind an extent that is known only when a program runs.

A descriptor of several dims has constant extents. So messages and functions of elements may take
more of a buffer than their views say, where what lies behind these is never read.
"""

from __future__ import annotations

from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, Recv
from meshc.ir.views import Range, View


def reader_behind(module: Module, view: View, place: int) -> str:
    """Who may read what lies behind ``view`` in dim ``place`` of its buffer, whose extent the run
    says, in words; nothing where nobody does."""
    index, buffer = view.indices[place], view.buffer
    if view.reshape or not isinstance(index, Range) or index.start != Expr.const(0):
        return f"{view} is not the beginning of a dim"
    if index.step != 1:
        return f"{view} is not the beginning of a dim"
    outside = {port.buffer for port in module.ports}
    outside |= {each.value for each in module.buffers if each.role}
    if buffer in outside:
        return f"what lies behind {view} is seen by the host"
    for other in module.walk():
        for number, used in enumerate(other.views()):
            if used.buffer != buffer or _writes(other, number):
                continue
            if place >= len(used.indices) or used.indices[place] != index:
                return f"what lies behind {view} may be read by '{used}'"
    return ""


def may_go_over(module: Module, op: Compute) -> bool:
    """Whether a function of elements may write behind what the run says of its result."""
    to = op.views()[0]
    of_the_run = [
        place
        for place, index in enumerate(to.indices)
        if isinstance(index, Range) and not index.extent.is_const
    ]
    return bool(of_the_run) and not any(reader_behind(module, to, place) for place in of_the_run)


def _writes(op: Op, number: int) -> bool:
    """Whether ``op`` writes its view ``number`` without reading it."""
    if isinstance(op, Compute):
        return op.declared.operands_of(op.params)[number].role == "out" and not op.params.get(
            "accumulate"
        )
    return isinstance(op, Recv) and op.combine == "store"
