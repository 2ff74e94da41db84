"""Which functions of elements are written as vector operations, and what scratch these take.

A function of one element costs a call and the library's routine for each. Vector operations on
scratch, in polynomials, do many at once. The call says it: ``way = vector`` for ``exp_sub``,
``silu`` and ``gelu`` with f16 results, in f32, ``half`` for those of the first two that go in f16
alone, and for ``rope`` what ``rope_vectors.py`` lists. Quotients and norms with f16 results,
``div`` and ``rms_scale``, go row by row; their reciprocals and roots may be Newton's (``newton``).
``row_max``, ``row_sum`` and ``mask_slots`` go row by row, or lane by lane for all rows at once
(``across``).
Without a way elements go one by one.

Rows and columns whose number is known only when the program runs go in blocks, ``vector_by_4``, and
those that no block holds one by one. Where nobody reads what lies behind them, the last block may
go over their end instead, ``vector_whole_by_4``. Where scratch for all elements is not to be had,
they go in pieces of so many in their longest dim, ``vector_by_18``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from math import ceil, prod

from meshc.analysis.csl.across import (
    across_cycles,
    across_scratch,
    goes_across,
    holds_results,
    slots_of_rows,
)
from meshc.analysis.csl.blocks import Blocks, blocks_of, in_blocks, lengths, pieces, whole_blocks
from meshc.analysis.csl.element_costs import by_rows
from meshc.analysis.csl.function_steps import steps_taken
from meshc.analysis.csl.instruction_costs import LENGTH, LOOP, OFFSET, Costs, rows_of_grids, setup
from meshc.analysis.csl.operands import BY_STEPS, at_once, one_by_one, widened
from meshc.analysis.csl.products import MOST_SCRATCH_BYTES
from meshc.analysis.csl.rope_vectors import PASS, SHARES, way_of_turns, wrong_turns
from meshc.analysis.csl.strided_windows import Window, first_part, rounds, window
from meshc.analysis.csl.ways import (
    ACROSS,
    ANGLES,
    BY,
    HALF,
    NEWTON,
    VECTOR,
    WHOLE,
    block_of,
    goes_over,
    parts_of,
)
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View

BY_NEWTON = ("div", "rms_scale")
"""The kernels that take a reciprocal or a root for each row."""
BY_LANES = ("row_max", "row_sum", "mask_slots")
"""The kernels that may take a lane of all rows at once."""
KERNELS = (*BY_STEPS, *BY_NEWTON, *BY_LANES, "rope")
"""The kernels that have such a way."""
_SHARE = 4
"""One function may take one part in so many of what buffers and code leave for scratch."""
LEAST_SCRATCH = 64
"""f32 elements that it may take in any case, out of what a device keeps for code."""


def room_for_scratch(free_bytes: int, shared: int) -> int:
    """f32 elements of scratch that a function may take: a quarter of ``free_bytes``, and 8 KiB, at
    most; what other kernels take, ``shared`` elements, is there for it as well."""
    own = min(max(free_bytes, 0) // _SHARE, MOST_SCRATCH_BYTES) // DType.F32.bytes
    return max(own, shared, LEAST_SCRATCH)


def chosen_way(
    op: Compute,
    costs: Costs,
    room: int,
    allowed: Collection[str],
    known: Collection[str],
) -> str:
    """The way in which ``op``, out of ``KERNELS``, has the fewest predicted cycles: parts out of
    ``allowed``, each with at most ``room`` elements of scratch. When ``BY`` is allowed, elements go
    in pieces where there is no room for all of them, and extents of the run are tried in blocks, of
    which that with the fewest cycles in the mean over what they may be is taken; with ``WHOLE``
    the last block may go over the end. ``known`` are names that have values when a program
    starts."""
    given = _given(op)
    if op.kernel in BY_STEPS:
        kinds = [kind for kind in (VECTOR, HALF) if {VECTOR, kind} <= {*allowed}]
        if blocks_of(given[0].dims):
            kinds = kinds if BY in allowed else []
            ways = _block_ways(op, given, costs, kinds, WHOLE in allowed, room)
        else:
            ways = _piece_ways(op, given, costs, kinds, BY in allowed, room)
        return min(ways, key=lambda way: ways[way])
    if op.kernel in BY_NEWTON:
        return NEWTON if NEWTON in allowed and _by_newton(given) else ""
    if op.kernel in BY_LANES:
        if ACROSS not in allowed or not goes_across(op, given):
            return ""
        masks = op.kernel == "mask_slots"
        each = slots_of_rows(given, costs) if masks else _one_by_one_cycles(op, given, costs)
        return ACROSS if across_cycles(op, given, costs) < each else ""
    return way_of_turns(op, costs, room, allowed, known)


def wrong_way(op: Compute, costs: Costs, known: Collection[str], over: bool) -> bool:
    """Whether ``op``, which says a way, cannot be written in it; ``over`` is whether its blocks may
    go over the end."""
    given = _given(op)
    if op.kernel in BY_NEWTON and op.way:
        return op.way != NEWTON or not _by_newton(given)
    if op.kernel in BY_LANES and op.way:
        return op.way != ACROSS or not goes_across(op, given)
    if op.kernel in BY_STEPS and BY in op.way:
        if blocks_of(given[0].dims):
            return op.way not in _block_ways(op, given, costs, (VECTOR, HALF), over)
        return op.way not in _piece_ways(op, given, costs, (VECTOR, HALF))
    if op.kernel == "rope" and op.way:
        return wrong_turns(op, costs, known)
    steps = steps_taken(op, given, costs, op.way) if op.way in (VECTOR, HALF) else None
    return steps is None or not steps.fits


def takes_registers(op: Compute) -> bool:
    """Whether ``op`` is written by operations whose operands registers may hold."""
    if op.way == ACROSS:
        return holds_results(op, _given(op))
    return bool(op.way) and (
        op.kernel in BY_STEPS or (op.kernel == "rope" and ANGLES in parts_of(op))
    )


def scratch_words(op: Compute, costs: Costs) -> int:
    """f32 elements of scratch that the way of ``op`` takes."""
    if op.kernel in BY_NEWTON:
        return 0
    if op.kernel in BY_LANES:
        return across_scratch(op, _given(op)) if op.way else 0
    given = _given(op)
    if block := block_of(op):
        known = not blocks_of(given[0].dims)
        given = pieces(given, block)[0].windows if known else _cut(op, given).whole
    steps = steps_taken(op, given, costs) if op.way else None
    return 0 if steps is None else steps.words


def copied_words(op: Compute) -> int:
    """f32 elements of the copies that ``op`` takes of operands of another type, or that what no
    block holds takes of its part of them."""
    given, block = _given(op), block_of(op)
    if op.kernel in BY_STEPS and block:
        rests = [rest.windows for rest in _cut(op, given).rests]
        return max((_size(rest, one_by_one(op, rest)) for rest in rests), default=0)
    part = at_once(op, given)
    return _size(part, widened(op, part))


def _size(windows: list[Window], chosen: list[bool]) -> int:
    """Elements of those that are chosen."""
    return sum(one.size for one, yes in zip(windows, chosen, strict=True) if yes)


def vector_cycles(op: Compute, windows: list[Window], costs: Costs) -> int:
    """Predicted cycles of a kernel by rows in the way that it says, at its largest extents; copies
    of operands that it takes without a way are not among them."""
    block = block_of(op)
    if op.way == ACROSS:
        return across_cycles(op, windows, costs)
    if not block:
        steps = steps_taken(op, windows, costs) if op.way else None
        return by_rows(op, windows, costs) if steps is None else steps.cycles
    if not blocks_of(windows[0].dims):
        return _in_pieces_cycles(op, windows, costs, block)
    return round(_in_blocks_cycles(op, windows, costs, _cut(op, windows), 1.0))


def _cut(op: Compute, windows: list[Window]) -> Blocks:
    """The operands in the blocks that ``op`` says."""
    return in_blocks(windows, block_of(op), goes_over(op))


def _piece_ways(
    op: Compute,
    windows: list[Window],
    costs: Costs,
    kinds: Iterable[str],
    cut: bool = True,
    room: int | None = None,
) -> dict[str, float]:
    """The ways of one of ``BY_STEPS`` whose extents are known, with their cycles, as far as they
    have ``room`` for their scratch; in pieces where it may be ``cut``."""
    found: dict[str, float] = {"": _one_by_one_cycles(op, windows, costs)}
    for kind, length in product(kinds, (0, *(lengths(windows) if cut else ()))):
        first = pieces(windows, length)[0].windows if length else windows
        steps = steps_taken(op, first, costs, kind)
        if (
            steps is None
            or not steps.fits
            or (room is not None and steps.bytes > room * DType.F32.bytes)
        ):
            continue
        way = f"{kind}{BY}{length}" if length else kind
        each = steps.cycles
        found[way] = _in_pieces_cycles(op, windows, costs, length, kind) if length else each
    return found


def _in_pieces_cycles(
    op: Compute, windows: list[Window], costs: Costs, length: int, kind: str = ""
) -> int:
    """Cycles in pieces of ``length``."""
    cycles = 0
    for piece in pieces(windows, length):
        steps = steps_taken(op, piece.windows, costs, kind)
        assert steps is not None
        cycles += piece.times * (steps.cycles + (PASS if piece.loop else 0))
    return cycles


def _block_ways(
    op: Compute,
    windows: list[Window],
    costs: Costs,
    kinds: Iterable[str],
    over: bool,
    room: int | None = None,
) -> dict[str, float]:
    """The ways of one of ``BY_STEPS`` for extents of the run, with their cycles summed over some of
    these extents, as far as they have ``room`` for their scratch; with blocks that go ``over`` the
    end."""
    most = _one_by_one_cycles(op, windows, costs)
    found = {"": sum(most * share ** _dims(windows) for share in SHARES)}
    dims = windows[0].dims
    cuts = {f"{BY}{block}": in_blocks(windows, block) for block in blocks_of(dims)}
    for block in whole_blocks(dims) if over else ():
        cuts[f"_{WHOLE}{BY}{block}"] = in_blocks(windows, block, over=True)
    for kind, (said, cut) in product(kinds, cuts.items()):
        steps = steps_taken(op, cut.whole, costs, kind)
        if (
            steps is not None
            and steps.fits
            and (room is None or steps.bytes <= room * DType.F32.bytes)
        ):
            each = (_in_blocks_cycles(op, windows, costs, cut, share, kind) for share in SHARES)
            found[f"{kind}{said}"] = sum(each)
    return found


def _dims(windows: list[Window]) -> int:
    """How many extents are known only when the program runs."""
    return sum(dim.count is not None for dim in windows[0].dims)


def _in_blocks_cycles(
    op: Compute, windows: list[Window], costs: Costs, cut: Blocks, share: float, kind: str = ""
) -> float:
    """Cycles in blocks, and one by one of what none holds, when extents of the run are ``share`` of
    the most that they can be."""
    steps = steps_taken(op, cut.whole, costs, kind)
    assert steps is not None
    extents = [dim.extent * share for dim in windows[0].dims if dim.count is not None]
    if cut.over:
        times = prod(ceil(loop.times * share) for loop in cut.loops)
        return times * (steps.cycles + (PASS if cut.loops else 0))
    taken = prod(e // loop.length for e, loop in zip(extents, cut.loops, strict=True))
    left = windows[0].size * share ** len(extents) - taken * cut.whole[0].size
    each = _one_by_one_cycles(op, windows, costs) / windows[0].size
    return taken * (steps.cycles + PASS) + max(left, 0.0) * each


def _one_by_one_cycles(op: Compute, given: list[Window], costs: Costs) -> int:
    """Cycles without a way, and of the copies that this takes of operands of another type."""
    copied = (one for one, yes in zip(given, one_by_one(op, given), strict=True) if yes)
    return by_rows(op, given, costs) + sum(_copied_cycles(one, costs) for one in copied)


def _copied_cycles(source: Window, costs: Costs) -> int:
    """Cycles of a copy to f32, or back, by the parts through which a DSD walks."""
    loops, (part,) = first_part([source])
    rows = rows_of_grids([part])
    once = setup([part, part]) + costs.vector("convert", DType.F32, part.size, (), rows)
    moved = OFFSET if part.constant else OFFSET + LENGTH
    return rounds(loops) * (once + LOOP + 2 * moved) if loops else once


def _by_newton(given: list[Window]) -> bool:
    """Whether a result resolves no more than what two of Newton's steps give."""
    return given[0].dtype == DType.F16


def _given(op: Compute) -> list[Window]:
    """The operands."""
    return [window(view, op.span) for view in op.operands if isinstance(view, View)]
