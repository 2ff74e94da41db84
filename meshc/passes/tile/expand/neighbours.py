"""Statements that do the same to neighbouring windows of a buffer, taken together.

Values that a product computes side by side, such as queries, keys and values, are often scaled or
turned alike behind it. One statement over all of them does the same with less to begin with.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.ir.core import Block, Operand
from meshc.ir.ops.tile import Compute
from meshc.ir.views import Point, Range, View

_ELEMENTWISE = frozenset({"add", "mul", "rope", "scale"})


def join_neighbours(block: Block) -> None:
    """Join what can be joined in ``block`` and the blocks inside it."""
    found = block.ops[:1]
    for op in block.ops[1:]:
        before = found[-1]
        both = None
        if isinstance(before, Compute) and isinstance(op, Compute):
            both = _joined(before, op)
        if both is not None:
            found[-1] = both
        else:
            found.append(op)
    block.ops[:] = found
    for op in block.ops:
        for region in op.regions:
            join_neighbours(region)


def _joined(first: Compute, second: Compute) -> Compute | None:
    """One statement for both: the windows of one follow those of the other, but for operands that
    are the same and repeated over the dim in which they are joined."""
    alike = (first.kernel, first.params, first.when) == (second.kernel, second.params, second.when)
    if first.kernel not in _ELEMENTWISE or not alike:
        return None
    rank = len(first.views()[0].shape())
    views: list[View] = []
    for one, other in zip(first.views(), second.views(), strict=True):
        view = _follows(one, other)
        if view is None and one == other and len(one.shape()) < rank:
            view = one
        if view is None:
            return None
        views.append(view)
    target = views[0]
    if any(view != target and not _apart(view, target) for view in views[1:]):
        return None
    return replace(first, operands=list[Operand](views))


def _follows(one: View, other: View) -> View | None:
    """The window of both, if ``other`` begins where ``one`` ends; joined in their first dim."""
    ranges = _range(one), _range(other)
    if ranges[0] is None or ranges[1] is None or one.buffer is not other.buffer:
        return None
    (*lead, _), (*beside, _) = one.indices, other.indices
    start, extent = ranges[0]
    if lead != beside or start + extent != ranges[1][0] or one.order or other.order:
        return None
    if bool(one.reshape) != bool(other.reshape) or one.reshape[1:] != other.reshape[1:]:
        return None
    shape = one.reshape
    if shape:
        shape = (one.reshape[0] + other.reshape[0], *shape[1:])
    last = one.indices[-1]
    assert isinstance(last, Range)
    whole = replace(last, extent=last.extent + ranges[1][1])
    return View(one.buffer, (*lead, whole), shape)


def _range(view: View) -> tuple[int, int] | None:
    """Start and extent in the last dim of the buffer, of whose other dims there is one index."""
    if not view.indices or len(view.indices) != len(view.buffer_type.shape):
        return None
    *lead, last = view.indices
    if not isinstance(last, Range) or last.step != 1 or not all(isinstance(i, Point) for i in lead):
        return None
    if not last.start.is_const or not last.extent.is_const:
        return None
    return last.start.constant, last.extent.constant


def _apart(one: View, other: View) -> bool:
    """Whether the views surely have no element in common."""
    if one.buffer is not other.buffer:
        return True
    mine, theirs = _range(one), _range(other)
    if mine is None or theirs is None:
        return False
    (start, extent), (begin, length) = mine, theirs
    return start + extent <= begin or begin + length <= start
