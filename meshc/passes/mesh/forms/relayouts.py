"""Re-layouts: bringing a value to where an op wants it."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import mesh
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import activation_layout, lies_over, whole_rows
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def move(way: Lowering, value: Value, layout: Layout, op: Op) -> Value:
    """Bring ``value`` into another layout.

    A vector goes from one axis of the plane to the other by a masked copy, of which the cores where
    both meet have the lanes, and a sum over the axis it leaves. Features that lie over an axis (of
    many rows: over columns) are gathered on every core of it; of whole ones each core keeps its
    part. A masked copy's sum rounds nothing, as it adds zeros to all that is there. Anything else
    fails with ``unsupported-layout``.
    """
    old, new = way.layout_of(value).splits, layout.splits
    gone, entered = [s for s in old if s not in new], [s for s in new if s not in old]
    if len(gone) + len(entered) == 1:
        (split,) = (*gone, *entered)
        others = [way.mesh.whole(s.axis) for s in old if s is not split]
        axes = (way.mesh.across,) if way.problem.many_rows else way.mesh.plane
        if split.axis in axes and split.kind == "block" and split.axis not in others:
            return _gathered(way, value, split) if gone else _parted(way, value, layout, split)
    single = len(old) == len(new) == 1 and old[0].dim == new[0].dim
    crosses = single and {old[0].axis, new[0].axis} == set(way.mesh.plane)
    if not crosses or way.problem.many_rows:
        fail(
            "unsupported-layout",
            f"'{value.name}' lies as {way.type_of(value).layout} but {layout} is needed",
            op.span,
        )
    left, reached = old[0].axis, new[0].axis
    hops = way.mesh.size(left) - 1
    words = (
        f"'{value.name}' moves from axis {left} to {reached}: a reduction over {hops} hops that a "
        "residual connection or a second product would avoid"
    )
    way.moves = (*way.moves, (words, op.span))
    kind = way.type_of(value).with_layout(Layout(new, (left,) if hops else ()))
    moved = way.emit(mesh.Relayout([value]), (value.name, kind))
    return way.all_reduce(moved, left)[0]


def _gathered(way: Lowering, value: Value, split: Split) -> Value:
    """All of the dim that lies over an axis, on every core of it. Sums of many rows are rounded
    first, which halves what travels."""
    value = way.rounded(value) if way.problem.many_rows else value
    kind = way.type_of(value)
    whole = Layout(tuple(s for s in way.layout_of(value).splits if s != split))
    made = mesh.AllGather([value], axis=split.axis, dim=split.dim)
    (found,) = way.emit(made, (value.name, kind.with_layout(whole)))
    return found


def _parted(way: Lowering, value: Value, layout: Layout, split: Split) -> Value:
    """Each core's part of a dim that it has all of."""
    made = mesh.Part([value], axis=split.axis, dim=split.dim)
    (found,) = way.emit(made, (value.name, way.type_of(value).with_layout(layout)))
    return found


def over_columns(way: Lowering, value: Value, op: Op) -> Value:
    """``value``, of many rows, with features over columns, as cyclic shifts want them."""
    if lies_over(way, value, way.mesh.across):
        return value
    return move(way, value, activation_layout(way, way.type_of(value).dims, way.mesh.across), op)


def with_whole_features(way: Lowering, value: Value, op: Op) -> Value:
    """``value``, of many rows, with all features on every core of a row."""
    if not lies_over(way, value, way.mesh.across):
        return value
    return move(way, value, whole_rows(way, way.type_of(value).dims), op)
