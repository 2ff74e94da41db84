"""gathered: each core has the whole vector, and so its sum of squares, by itself.

The forms that meshc has add up the sums of squares of the cores, a message of one word; this one
sends the vector.
"""

import meshc
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout


def lower(way, op):
    """Emit the norm ``op`` into ``way``; what it norms is gathered along the axis of its lanes."""
    value, gain = (way.env_of(operand) for operand in op.operands)
    split = way.layout_of(value).split_of(op.dim)
    whole = way.type_of(value).with_layout(Layout())
    (copy,) = way.emit(mesh.AllGather([value], axis=split.axis, dim=op.dim), ("copy", whole))
    total = way.partial_over(mesh.SquareSum([copy], dim=op.dim), "total")
    way.place(gain, way.restricted(value, (op.dim,)), op)
    scaled = mesh.RmsScale([value, total, gain], dim=op.dim, eps=op.eps)
    way.env[op.result] = way.emit_like(scaled, op.result.name, value)


GATHERED = meshc.BroughtForm(graph.RmsNorm, lower)
