"""What loops of a program cost besides their statements."""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import DESCRIPTOR, LOOP, OFFSET, around_pass
from meshc.ir.ops.tile import Compute, For

_ONE_OPERATION = ("fill", "copy", "add", "mul", "larger", "scale", "at_least")


def around(op: For, passes: int) -> int:
    """Scalar cycles around one of so many passes of a loop that does not wait, which is written out
    if it has few operations on vectors and nothing else."""
    (body,) = op.regions
    operations = 0
    for inner in body.walk():
        if not isinstance(inner, Compute) or inner.kernel not in _ONE_OPERATION:
            return LOOP
        operations += 2 + len(inner.views()) * (OFFSET + DESCRIPTOR)
    return around_pass(passes, operations)
