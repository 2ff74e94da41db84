"""Re-layouts: bringing a value to where an op wants it."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import mesh
from meshc.ir.types import Layout
from meshc.ir.values import Value
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def move(way: Lowering, value: Value, layout: Layout, op: Op) -> Value:
    """Bring ``value`` into another layout.

    A vector goes from one axis of the plane to the other by a masked copy, of which the cores where
    both meet have the lanes, and a sum over the axis it leaves. Anything else fails with
    ``unsupported-layout``.
    """
    old, new = way.layout_of(value).splits, layout.splits
    single = len(old) == len(new) == 1 and old[0].dim == new[0].dim
    crosses = single and {old[0].axis, new[0].axis} == set(way.mesh.plane)
    if not crosses or way.problem.many_rows:
        fail(
            "unsupported-layout",
            f"'{value.name}' lies as {way.type_of(value).layout} but {layout} is needed",
            op.span,
        )
    left, entered = old[0].axis, new[0].axis
    hops = way.mesh.size(left) - 1
    words = (
        f"'{value.name}' moves from axis {left} to {entered}: a reduction over {hops} hops that a "
        "residual connection or a second product would avoid"
    )
    way.moves = (*way.moves, (words, op.span))
    kind = way.partial(way.type_of(value).dims, new, left)
    moved = way.emit(mesh.Relayout([value]), (value.name, kind))
    return way.all_reduce(moved, left)[0]
