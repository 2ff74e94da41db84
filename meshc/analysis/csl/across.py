"""Kernels of rows that take a lane of all rows at once: maxima and sums of rows, masks of slots.

Row by row each one costs a loop and its descriptors, however few lanes it has. Where rows lie
evenly apart, one operation does for a lane of all of them: with more rows than lanes that is less.
A row is added up in the same order either way, in the type of its sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.csl.instruction_costs import CONSTANT, DESCRIPTOR, Costs, looped, setup, walked
from meshc.analysis.csl.strided_windows import Window, has_one_dim
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

OF_A_RING = 12
"""Cycles of the scalar code that finds a slot, predicted: two loads, a sum and a division."""
_ROW_OF_SLOTS = 29
"""Cycles of the scalar code of a row of a mask, measured on the simulator."""
_EMPTY, _SLOT = 15, 15
"""The same of a mask of all rows at once, and of each slot."""
_BEGIN = 4
"""Cycles of maxima or sums across rows before the first lane."""
_LANE = 6
"""Operations of the loop around a lane."""


def lane_of(window: Window) -> Window:
    """The first lane of all rows of ``window`` [*rows, lanes]."""
    return window.inner(window.dims[:-1])


def goes_across(op: Compute, given: Sequence[Window]) -> bool:
    """Whether one operation does for a lane of all rows of ``op``, whose extents are known."""
    rows, *small = (given[0],) if op.kernel == "mask_slots" else (given[1], given[0])
    if len(rows.dims) < 2 or (small and len(small[0].dims) != len(rows.dims) - 1):
        return False
    if op.kernel == "row_sum" and small[0].dtype not in (rows.dtype, DType.F32):
        return False
    whole = (rows, *small)
    return all(w.constant for w in whole) and all(map(has_one_dim, (lane_of(rows), *small)))


def holds_results(op: Compute, given: Sequence[Window]) -> bool:
    """Whether a register may hold what all operations of ``op`` across rows change, which lies at
    one place."""
    return op.kernel in ("row_max", "row_sum") and given[0].start.is_const


def across_cycles(op: Compute, windows: Sequence[Window], costs: Costs) -> int:
    """Predicted cycles of ``op`` that goes across rows; of a mask, where half of the slots are
    empty."""
    if op.kernel == "mask_slots":
        scores = windows[0]
        rows, slots = lane_of(scores), scores.dims[-1].extent
        each = walked(1, 1) + costs.vector("add", scores.dtype, rows.size, (rows.pace,))
        return _EMPTY + slots // 2 * (each + _SLOT)
    to, source = windows
    rows, lanes = lane_of(source), source.dims[-1].extent
    sums = op.kernel == "row_sum"
    kind, dtype = ("add", to.dtype) if sums else ("convert", source.dtype)
    each = walked(3) + costs.vector(kind, dtype, rows.size, (rows.pace,))
    each += round(costs.meetings([to, rows]))
    begun = walked(1, 1) + costs.vector("add", dtype, rows.size, (1,))
    if op.dsr:
        each, begun = each - 2 * DESCRIPTOR, begun + CONSTANT
    narrow = across_scratch(op, windows)
    converted = setup([to, to]) + costs.vector("convert", to.dtype, narrow, ()) if narrow else 0
    return _BEGIN + begun + lanes * each + looped(lanes, _LANE, 1) + converted


def across_scratch(op: Compute, given: Sequence[Window]) -> int:
    """Elements of scratch, in the type of the rows, where maxima are wanted in another."""
    if op.kernel != "row_max":
        return 0
    to, source = given
    return to.size if to.dtype != source.dtype else 0


def slots_of_rows(windows: Sequence[Window], costs: Costs) -> int:
    """Predicted cycles of a mask of slots row by row, where half of the slots are empty."""
    *lead, last = windows[0].dims
    rows = windows[0].inner(lead).size
    each = walked(1, 1) + costs.vector("add", windows[0].dtype, last.extent // 2, (1,))
    return 2 * OF_A_RING + rows * (each + _ROW_OF_SLOTS)
