"""Which functions of elements are written as vector operations, and what scratch these take.

A function of one element costs a call and the library's routine for each. Vector operations on
scratch, in polynomials, do many at once. The call says it: ``way = vector`` for ``exp_sub``,
``silu`` and ``gelu`` with f16 results, in f32, ``half`` for those of the first two that go in f16
alone, and for ``rope`` ``angles`` (sines and cosines of all frequencies at once), ``turns`` (all
pairs of lanes of all heads at once) or ``angles_turns``. Quotients and norms with f16 results,
``div`` and ``rms_scale``, go row by row; their reciprocals and roots may be Newton's (``newton``).
``row_max`` and ``mask_slots`` go row by row, or lane by lane for all rows at once (``across``).
Without a way elements go one by one.

Rows and columns whose number is known only when the program runs go in blocks, ``vector_by_4``, and
those that no block holds one by one. Where scratch for all elements is not to be had, they go in
pieces of so many in their longest dim, ``vector_by_18``. Sines and cosines of all rows of a prompt
are worked out at once, when the program starts, and kept for all layers:
``angles_kept_turns_by_4``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from math import prod

from meshc.analysis.csl.across import across_cycles, goes_across, maxima_scratch, slots_of_rows
from meshc.analysis.csl.angles import of_rows, sines_and_cosines
from meshc.analysis.csl.blocks import blocks_of, in_blocks, lengths, pieces
from meshc.analysis.csl.costs import LENGTH, LOOP, OFFSET, Costs, rows_of_grids, setup
from meshc.analysis.csl.element_costs import ANGLE, by_rows, pair_by_pair, rows_of
from meshc.analysis.csl.functions import (
    exponentials,
    exponentials_in_half,
    gelu_by_erf,
    gelu_by_tanh,
    silu,
    silu_in_half,
)
from meshc.analysis.csl.operands import BY_STEPS, at_once, one_by_one, widened
from meshc.analysis.csl.products import MOST_SCRATCH_BYTES
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.ways import (
    ACROSS,
    ANGLES,
    BY,
    HALF,
    KEPT,
    NEWTON,
    TURNS,
    VECTOR,
    block_of,
    parts_of,
)
from meshc.analysis.csl.windows import Dim, Window, dense, first_part, rounds, window
from meshc.analysis.csl.words import needed_by_angles
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View

BY_NEWTON = ("div", "rms_scale")
"""The kernels that take a reciprocal or a root for each row."""
BY_LANES = ("row_max", "mask_slots")
"""The kernels that may take a lane of all rows at once."""
KERNELS = (*BY_STEPS, *BY_NEWTON, *BY_LANES, "rope")
"""The kernels that have such a way."""
_SHARE = 4
"""Of the memory that buffers and code leave the part that one function may take for scratch."""
LEAST_SCRATCH = 64
"""f32 elements that it may take in any case, out of what a device keeps for code."""
_SHARES = tuple(eighth / 8 for eighth in range(1, 9))
"""Of the most that an extent of the run can be: those over which a mean is taken."""
_PASS = 20
"""Cycles of the loop around a block, and of its descriptors, which it moves."""


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
    which that with the fewest cycles in the mean over what they may be is taken. ``known`` are
    names that have values when a program starts."""
    given = _given(op)
    if op.kernel in BY_STEPS:
        kinds = [kind for kind in (VECTOR, HALF) if {VECTOR, kind} <= {*allowed}]
        if blocks_of(given[0].dims):
            kinds = kinds if BY in allowed else []
            ways = _block_ways(op, given, costs, kinds, room)
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
    if op.kernel == "rope" and {ANGLES, KEPT, TURNS} <= {*allowed}:
        ways = _kept_ways(op, given, costs, known, BY in allowed, room)
        if ways:
            return min(ways, key=lambda way: ways[way])
    found = []
    for part, steps, otherwise in _parts(op, costs):
        if part in allowed and steps.fits and steps.words <= room and steps.cycles < otherwise:
            found.append(part)
    return "_".join(found)


def wrong_way(op: Compute, costs: Costs, known: Collection[str]) -> bool:
    """Whether ``op``, which says a way, cannot be written in it."""
    given = _given(op)
    if op.kernel in BY_NEWTON and op.way:
        return op.way != NEWTON or not _by_newton(given)
    if op.kernel in BY_LANES and op.way:
        return op.way != ACROSS or not goes_across(op, given)
    if op.kernel in BY_STEPS and BY in op.way:
        ways = _block_ways if blocks_of(given[0].dims) else _piece_ways
        return op.way not in ways(op, given, costs, (VECTOR, HALF))
    if op.kernel == "rope" and KEPT in parts_of(op):
        return op.way not in _kept_ways(op, given, costs, known)
    parts = _parts(op, costs) if op.kernel in KERNELS else []
    said = op.way.split("_")
    possible = {part for part, steps, _ in parts if steps.fits}
    return not set(said) <= possible or said != sorted(set(said))


def takes_registers(op: Compute) -> bool:
    """Whether ``op`` is written by operations whose operands registers may hold."""
    return bool(op.way) and (
        op.kernel in BY_STEPS or (op.kernel == "rope" and ANGLES in parts_of(op))
    )


def scratch_words(op: Compute, costs: Costs) -> int:
    """f32 elements of scratch that the way of ``op`` takes."""
    if op.kernel in BY_NEWTON:
        return 0
    if op.kernel in BY_LANES:
        return maxima_scratch(_given(op)) if op.way and op.kernel == "row_max" else 0
    if op.kernel == "rope" and KEPT in parts_of(op):
        return _kept_words(op, _given(op), costs, block_of(op))
    if block := block_of(op):
        given = _given(op)
        known = not blocks_of(given[0].dims)
        first = pieces(given, block)[0].windows if known else in_blocks(given, block).whole
        steps = function_steps(op, first, costs)
        return 0 if steps is None else steps.words
    said = op.way.split("_")
    parts = _parts(op, costs) if op.way else []
    return max((steps.words for part, steps, _ in parts if part in said), default=0)


def copied_words(op: Compute) -> int:
    """f32 elements of the copies that ``op`` takes of operands of another type, or that what no
    block holds takes of its part of them."""
    given, block = _given(op), block_of(op)
    if op.kernel in BY_STEPS and block:
        rests = [rest.windows for rest in in_blocks(given, block).rests]
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
        steps = function_steps(op, windows, costs) if op.way else None
        return by_rows(op, windows, costs) if steps is None else steps.cycles
    if not blocks_of(windows[0].dims):
        return _in_pieces_cycles(op, windows, costs, block)
    return round(_in_blocks_cycles(op, windows, costs, block, 1.0))


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
        steps = function_steps(op, first, costs, kind)
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
        steps = function_steps(op, piece.windows, costs, kind)
        assert steps is not None
        cycles += piece.times * (steps.cycles + (_PASS if piece.loop else 0))
    return cycles


def _block_ways(
    op: Compute,
    windows: list[Window],
    costs: Costs,
    kinds: Iterable[str],
    room: int | None = None,
) -> dict[str, float]:
    """The ways of one of ``BY_STEPS`` for extents of the run, with their cycles summed over some of
    these extents, as far as they have ``room`` for their scratch."""
    most = _one_by_one_cycles(op, windows, costs)
    found = {"": sum(most * share ** _dims(windows) for share in _SHARES)}
    for kind, block in product(kinds, blocks_of(windows[0].dims)):
        steps = function_steps(op, in_blocks(windows, block).whole, costs, kind)
        if (
            steps is not None
            and steps.fits
            and (room is None or steps.bytes <= room * DType.F32.bytes)
        ):
            each = (_in_blocks_cycles(op, windows, costs, block, s, kind) for s in _SHARES)
            found[f"{kind}{BY}{block}"] = sum(each)
    return found


def _kept_ways(
    op: Compute,
    windows: list[Window],
    costs: Costs,
    known: Collection[str],
    blocks: bool = True,
    room: int | None = None,
) -> dict[str, float]:
    """The ways of a ``rope`` of several rows with sines and cosines kept for all of them, and the
    cycles of turning, summed over some numbers of rows; none where the positions are not known when
    the program starts, or where there is no ``room``."""
    to, source, frequencies = windows
    position = op.params["position"]
    assert isinstance(position, Expr)
    if frequencies.dtype != DType.F32 or rows_of(to) == 1:
        return {}
    if not needed_by_angles(position, frequencies) <= {*known}:
        return {}
    rows = to.dims[-2]
    name, found = "_".join((ANGLES, KEPT, TURNS)), dict[str, float]()
    for block in (blocks_of((rows,)) or [0]) if blocks else [min(1, len(blocks_of((rows,))))]:
        cycles = 0.0
        for share in _SHARES:
            whole, singles = divmod(int(rows.extent * share), block) if block else (1, 0)
            cycles += whole * (_PASS + turned_rows(costs, to, source, block or rows.extent).cycles)
            cycles += singles * (_PASS + turned_rows(costs, to, source, 1).cycles)
        words = _kept_words(op, windows, costs, block) + 2 * rows.extent * frequencies.size
        fits = turned_rows(costs, to, source, block or rows.extent).fits
        if fits and (room is None or words <= room):
            found[f"{name}{BY}{block}" if block else name] = cycles
    return found


def _kept_words(op: Compute, windows: list[Window], costs: Costs, block: int) -> int:
    """f32 elements of scratch of the angles of all rows, and of turning so many at once."""
    to, source, frequencies = windows
    rows = rows_of(to)
    table = _table(rows * frequencies.size)
    steps, _ = of_rows(costs, frequencies, table, table, rows)
    return max(steps.words, turned_rows(costs, to, source, block or rows).words)


def turned_rows(costs: Costs, to: Window, source: Window, rows: int) -> Steps:
    """The operations that turn so many rows at once, for their cycles and scratch."""

    def first(window: Window) -> Window:
        dims = [*window.dims]
        dims[-2] = Dim(rows, dims[-2].stride)
        return window.inner(dims)

    tables = _table(rows * to.dims[-1].extent // 2)
    return turning_steps(costs, *pairs_of(first(to), first(source), (tables, tables)))


def _dims(windows: list[Window]) -> int:
    """How many extents are known only when the program runs."""
    return sum(dim.count is not None for dim in windows[0].dims)


def _in_blocks_cycles(
    op: Compute, windows: list[Window], costs: Costs, block: int, share: float, kind: str = ""
) -> float:
    """Cycles in blocks, and one by one of what none holds, when extents of the run are ``share`` of
    the most that they can be."""
    cut = in_blocks(windows, block)
    steps = function_steps(op, cut.whole, costs, kind)
    assert steps is not None
    extents = [dim.extent * share for dim in windows[0].dims if dim.count is not None]
    taken = prod(e // loop.length for e, loop in zip(extents, cut.loops, strict=True))
    left = windows[0].size * share ** len(extents) - taken * cut.whole[0].size
    each = _one_by_one_cycles(op, windows, costs) / windows[0].size
    return taken * (steps.cycles + _PASS) + max(left, 0.0) * each


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


def function_steps(op: Compute, given: list[Window], costs: Costs, kind: str = "") -> Steps | None:
    """The operations of one of ``BY_STEPS`` whose result has 16 bits, of the ``kind`` of way that
    is asked for or that the call says; None for others."""
    if op.kernel not in BY_STEPS or not given[0].dtype.half:
        return None
    if (kind or next(iter(parts_of(op)), "")) == HALF:
        found = _in_half(op, given, costs)
    elif op.kernel == "exp_sub":
        found = exponentials(costs, *given)
    elif op.kernel == "silu":
        found = silu(costs, *given)
    else:
        found = (gelu_by_tanh if op.params["form"] == "tanh" else gelu_by_erf)(costs, *given)
    return found.hold() if found is not None and op.dsr else found


def _in_half(op: Compute, given: list[Window], costs: Costs) -> Steps | None:
    """The operations in f16 alone; None for functions and types that have none."""
    if given[0].dtype != DType.F16 or op.kernel not in ("exp_sub", "silu"):
        return None
    if op.kernel == "silu":
        return silu_in_half(costs, *given)
    return exponentials_in_half(costs, *given) if given[1].dtype == DType.F16 else None


def _by_newton(given: list[Window]) -> bool:
    """Whether a result resolves no more than what two of Newton's steps give."""
    return given[0].dtype == DType.F16


def pairs_of(to: Window, source: Window, tables: tuple[Window, Window]) -> list[Window]:
    """The even and the odd lanes of result and source, as [*heads, rows, pairs], with what
    ``tables`` of cosines and sines have for them, by rows if there are several."""
    pairs = to.dims[-1].extent // 2
    rows = [Dim(one.extent, pairs, one.count) for one in to.dims[-2:-1]]
    lead = [Dim(dim.extent, 0) for dim in to.dims[:-2]]
    return [
        *(_lanes(window, which) for window in (to, source) for which in (0, 1)),
        *(table.inner((*lead, *rows, Dim(pairs, 1))) for table in tables),
    ]


def turning_steps(
    costs: Costs,
    new_even: Window,
    new_odd: Window,
    old_even: Window,
    old_odd: Window,
    cosines: Window,
    sines: Window,
) -> Steps:
    """The operations that turn pairs of lanes by angles."""
    steps = Steps(costs)
    even, odd, even_by_odd, odd_by_even = (steps.room(old_even.size) for _ in range(4))
    if old_even.dtype != DType.F32:
        for old, here in ((old_even, even), (old_odd, odd)):
            steps.do("@fh2s", here, old)
        old_even, old_odd = even, odd
    steps.do("@fmuls", even_by_odd, old_odd, sines)
    steps.do("@fmuls", odd_by_even, old_even, sines)
    steps.do("@fmuls", even, old_even, cosines)
    steps.do("@fmuls", odd, old_odd, cosines)
    wide = new_even.dtype == DType.F32
    steps.do("@fsubs", new_even if wide else even, even, even_by_odd)
    steps.do("@fadds", new_odd if wide else odd, odd, odd_by_even)
    if not wide:
        steps.do("@fs2h", new_even, even)
        steps.do("@fs2h", new_odd, odd)
    return steps


def _given(op: Compute) -> list[Window]:
    """The operands."""
    return [window(view, op.span) for view in op.operands if isinstance(view, View)]


def _parts(op: Compute, costs: Costs) -> list[tuple[str, Steps, int]]:
    """Parts of the ways that ``op`` has: the operations, and the cycles of what they replace."""
    given = _given(op)
    if op.kernel == "rope":
        copied = zip(given, one_by_one(op, given), strict=True)
        to, source, frequencies = (_copy(one) if yes else one for one, yes in copied)
        if frequencies.dtype != DType.F32 or source.dtype != DType.F32:
            return []
        tables = (_table(frequencies.size), _table(frequencies.size))
        angles = sines_and_cosines(costs, frequencies, *tables)
        turns = turning_steps(costs, *pairs_of(one_row(to), one_row(source), tables))
        return [
            (ANGLES, angles, ANGLE * frequencies.size),
            (TURNS, turns, pair_by_pair(to, frequencies, costs)),
        ]
    whole = ((kind, function_steps(op, given, costs, kind)) for kind in (VECTOR, HALF))
    each = _one_by_one_cycles(op, given, costs)
    return [(kind, steps, each) for kind, steps in whole if steps is not None]


def one_row(window: Window, row: Expr | None = None) -> Window:
    """The first row, or ``row``, of an operand [*heads, rows, lanes]."""
    if len(window.dims) == 1:
        return window
    *heads, rows, lanes = window.dims
    moved = window if row is None else window.moved(row * rows.stride)
    return moved.inner((*heads, Dim(1, rows.stride), lanes))


def _lanes(window: Window, which: int) -> Window:
    """All lanes 2 n + which."""
    *lead, lanes = window.dims
    moved = window.moved(which * lanes.stride)
    return moved.inner((*lead, Dim(lanes.extent // 2, 2 * lanes.stride)))


def _copy(source: Window) -> Window:
    """f32 memory like that of the copies of operands."""
    dims = dense(source.dims)
    buffer = Value("copy", BufferType(DType.F32, (source.size,)))
    return Window(buffer, DType.F32, Expr.const(0), dims)


def _table(size: int) -> Window:
    buffer = Value("table", BufferType(DType.F32, (size,)))
    return Window(buffer, DType.F32, Expr.const(0), (Dim(size, 1),))
