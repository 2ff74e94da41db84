"""Which parts of a ``rope`` are vector operations, and what scratch these take.

``angles`` are sines and cosines of all frequencies at once, ``turns`` all pairs of lanes of all
heads at once; ``half`` beside both keeps sines and cosines in f16 and turns lanes by operations of
f16 alone, as usual implementations of models in f16 do. Sines and cosines of all rows of a prompt
are worked out at once, when the program starts, and ``kept`` for all layers; rows whose number is
known only when the program runs are turned so many at once (``angles_half_kept_turns_by_4``).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from meshc.analysis.csl.angles import of_rows, sines_and_cosines
from meshc.analysis.csl.blocks import blocks_of
from meshc.analysis.csl.element_costs import ANGLE, pair_by_pair, rows_of
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.operands import one_by_one
from meshc.analysis.csl.strided_windows import Dim, Window, dense, window
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.ways import (
    ANGLES,
    BY,
    HALF,
    KEPT,
    TURNS,
    block_of,
    parts_of,
    type_of_angles,
)
from meshc.analysis.csl.words import TABLE_BYTES, needed_by_angles
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

SHARES = tuple(eighth / 8 for eighth in range(1, 9))
"""Shares of the most that an extent of the run can be, over which a mean is taken."""
PASS = 20
"""Cycles of the loop around a block, and of its descriptors, which it moves."""


def way_of_turns(
    op: Compute, costs: Costs, room: int, allowed: Collection[str], known: Collection[str]
) -> str:
    """The way in which a ``rope`` has the fewest predicted cycles, as ``chosen_way`` says it."""
    if {ANGLES, KEPT, TURNS} <= {*allowed}:
        ways = _kept_ways(op, costs, known, BY in allowed, HALF in allowed, room)
        if ways:
            return min(ways, key=lambda way: ways[way])
    found = []
    for part, steps, otherwise in _parts(op, costs):
        if part in allowed and steps.fits and steps.words <= room and steps.cycles < otherwise:
            found.append(part)
    if HALF in allowed and found == [ANGLES, TURNS]:
        half = _in_half(op, costs)
        if half is not None and half.fits and half.bytes <= room * DType.F32.bytes:
            found.append(HALF)
    return "_".join(sorted(found))


def wrong_turns(op: Compute, costs: Costs, known: Collection[str]) -> bool:
    """Whether a ``rope`` cannot be written in the way that it says."""
    if KEPT in parts_of(op):
        return op.way not in _kept_ways(op, costs, known)
    said = op.way.split("_")
    possible = {part for part, steps, _ in _parts(op, costs) if steps.fits}
    half = _in_half(op, costs)
    if half is not None and half.fits and {ANGLES, TURNS} <= {*said}:
        possible.add(HALF)
    return not {*said} <= possible or said != sorted(set(said))


def scratch_of_turns(op: Compute, costs: Costs) -> dict[DType, int]:
    """Elements of scratch that a ``rope`` takes, by their type."""
    to, source, frequencies = _given(op)
    said, dtype = parts_of(op), type_of_angles(op)
    rows = rows_of(to) if KEPT in said else 1
    found = {DType.F32: 0}
    if ANGLES in said:
        found[DType.F32] = _angles(costs, frequencies, rows, dtype).words
    if TURNS in said:
        turns = turned_rows(costs, to, source, block_of(op) or rows, dtype)
        found[dtype] = max(found.get(dtype, 0), turns.words)
    else:  # one by one, two products of each head's lanes of one row
        one_by_one = 2 * (to.size // to.dims[-1].extent // rows_of(to))
        found[DType.F32] = max(found[DType.F32], one_by_one)
    return {kind: words for kind, words in found.items() if words}


def turned_rows(
    costs: Costs, to: Window, source: Window, rows: int, dtype: DType = DType.F32
) -> Steps:
    """The operations that turn so many rows at once by angles of this type, for their cycles and
    scratch."""

    def first(window: Window) -> Window:
        if len(window.dims) == 1:
            return window
        dims = [*window.dims]
        dims[-2] = Dim(rows, dims[-2].stride)
        return window.inner(dims)

    count = rows * to.dims[-1].extent // 2
    tables = table("cosines", count, dtype), table("sines", count, dtype)
    return turning_steps(costs, *pairs_of(first(to), first(source), tables))


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
    """The operations that turn pairs of lanes by angles, in the type of these."""
    steps = Steps(costs, cosines.dtype)
    even, odd, even_by_odd, odd_by_even = (steps.room(old_even.size) for _ in range(4))
    old_even, old_odd = steps.wide(old_even, even), steps.wide(old_odd, odd)
    kind = "s" if steps.dtype == DType.F32 else "h"
    steps.do(f"@fmul{kind}", even_by_odd, old_odd, sines)
    steps.do(f"@fmul{kind}", odd_by_even, old_even, sines)
    steps.do(f"@fmul{kind}", even, old_even, cosines)
    steps.do(f"@fmul{kind}", odd, old_odd, cosines)
    same = new_even.dtype == steps.dtype
    steps.do(f"@fsub{kind}", new_even if same else even, even, even_by_odd)
    steps.do(f"@fadd{kind}", new_odd if same else odd, odd, odd_by_even)
    if not same:
        steps.do("@fs2h", new_even, even)
        steps.do("@fs2h", new_odd, odd)
    return steps


def one_row(window: Window, row: Expr | None = None) -> Window:
    """The first row, or ``row``, of an operand [*heads, rows, lanes]."""
    if len(window.dims) == 1:
        return window
    *heads, rows, lanes = window.dims
    moved = window if row is None else window.moved(row * rows.stride)
    return moved.inner((*heads, Dim(1, rows.stride), lanes))


def table(name: str, size: int, dtype: DType) -> Window:
    """An array of its own, of sines or of cosines."""
    buffer = Value(name, BufferType(dtype, (size,)))
    return Window(buffer, dtype, Expr.const(0), (Dim(size, 1),))


def _kept_ways(
    op: Compute,
    costs: Costs,
    known: Collection[str],
    blocks: bool = True,
    half: bool = True,
    room: int | None = None,
) -> dict[str, float]:
    """The ways of a ``rope`` of several rows with sines and cosines kept for all of them, in f16 if
    they may be ``half``, and the cycles of turning, summed over some numbers of rows; none where
    the positions are not known when the program starts, or where there is no ``room``."""
    to, source, frequencies = _given(op)
    position = op.params["position"]
    assert isinstance(position, Expr)
    if frequencies.dtype != DType.F32 or rows_of(to) == 1:
        return {}
    if not needed_by_angles(position, frequencies) <= {*known}:
        return {}
    rows = to.dims[-2]
    kinds = [DType.F32, *([DType.F16] if half and to.dtype == DType.F16 else [])]
    counts = (blocks_of((rows,)) or [0]) if blocks else [min(1, len(blocks_of((rows,))))]
    found = dict[str, float]()
    for dtype, block in product(kinds, counts):
        most = turned_rows(costs, to, source, block or rows.extent, dtype)
        single = turned_rows(costs, to, source, 1, dtype)
        cycles = 0.0
        for share in SHARES:
            whole, singles = divmod(int(rows.extent * share), block) if block else (1, 0)
            cycles += whole * (PASS + most.cycles) + singles * (PASS + single.cycles)
        scratch = max(_angles(costs, frequencies, rows.extent, dtype).bytes, most.bytes)
        tables = 2 * rows.extent * frequencies.size * dtype.bytes
        if most.fits and (room is None or scratch + tables <= room * TABLE_BYTES):
            parts = [ANGLES, *([HALF] if dtype == DType.F16 else []), KEPT, TURNS]
            found["_".join(parts) + (f"{BY}{block}" if block else "")] = cycles
    return found


def _angles(costs: Costs, frequencies: Window, rows: int, dtype: DType) -> Steps:
    """The operations that find sines and cosines of so many rows, for their scratch."""
    count = rows * frequencies.size
    tables = table("sines", count, dtype), table("cosines", count, dtype)
    if rows == 1:
        return sines_and_cosines(costs, frequencies, *tables)
    return of_rows(costs, frequencies, *tables, rows)[0]


def _in_half(op: Compute, costs: Costs) -> Steps | None:
    """The operations that turn a row in f16; None for results of another type."""
    to, source, frequencies = _given(op)
    if to.dtype != DType.F16 or frequencies.dtype != DType.F32:
        return None
    return turned_rows(costs, to, source, 1, DType.F16)


def _parts(op: Compute, costs: Costs) -> list[tuple[str, Steps, int]]:
    """Parts of the ways that ``op`` has in f32: the operations, and the cycles of what they
    replace."""
    given = _given(op)
    copied = zip(given, one_by_one(op, given), strict=True)
    to, source, frequencies = (_copy(one) if yes else one for one, yes in copied)
    if frequencies.dtype != DType.F32 or source.dtype != DType.F32:
        return []
    angles = _angles(costs, frequencies, 1, DType.F32)
    turns = turned_rows(costs, one_row(to), one_row(source), 1)
    return [
        (ANGLES, angles, ANGLE * frequencies.size),
        (TURNS, turns, pair_by_pair(to, frequencies, costs)),
    ]


def _given(op: Compute) -> list[Window]:
    """Result, source and frequencies."""
    return [window(view, op.span) for view in op.views()]


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
