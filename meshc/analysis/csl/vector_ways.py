"""Which functions of elements are written as vector operations, and what scratch these take.

A function of one element costs a call and the library's routine for each. Vector operations on f32
scratch, in polynomials, do many at once. The call says it: ``way = vector`` for ``exp_sub``,
``silu`` and ``gelu`` with f16 results, and for ``rope`` ``angles`` (sines and cosines of all
frequencies at once), ``turns`` (all pairs of lanes of all heads at once) or ``angles_turns``.
Without a way elements go one by one.
"""

from __future__ import annotations

from meshc.analysis.csl.angles import sines_and_cosines
from meshc.analysis.csl.costs import SETUP, Costs
from meshc.analysis.csl.element_costs import ANGLE, by_rows, pair_by_pair
from meshc.analysis.csl.functions import exponentials, gelu_by_erf, gelu_by_tanh, silu
from meshc.analysis.csl.operands import BY_STEPS, one_by_one
from meshc.analysis.csl.products import MOST_SCRATCH_BYTES
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.windows import Dim, Window, dense, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View

VECTOR, ANGLES, TURNS = "vector", "angles", "turns"
KERNELS = (*BY_STEPS, "rope")
"""The kernels that have such a way."""
_SHARE = 4
"""Of the memory that buffers and code leave the part that one function may take for scratch."""
_FIRST_ROW = Expr.const(0)


def chosen_way(op: Compute, costs: Costs, free_bytes: int, allowed: tuple[str, ...]) -> str:
    """The way in which ``op``, out of ``KERNELS``, has the fewest predicted cycles: parts out of
    ``allowed``, each with a quarter of ``free_bytes`` of scratch at most, and 8 KiB."""
    room = min(free_bytes // _SHARE, MOST_SCRATCH_BYTES) // DType.F32.bytes
    found = []
    for part, steps, otherwise in _parts(op, costs):
        if part in allowed and steps.fits and steps.words <= room and steps.cycles < otherwise:
            found.append(part)
    return "_".join(found)


def wrong_way(op: Compute, costs: Costs) -> bool:
    """Whether ``op``, which says a way, cannot be written in it."""
    parts = _parts(op, costs) if op.kernel in KERNELS else []
    said = op.way.split("_")
    possible = {part for part, steps, _ in parts if steps.fits}
    return not set(said) <= possible or said != sorted(set(said))


def scratch_words(op: Compute, costs: Costs) -> int:
    """f32 elements of scratch that the way of ``op`` takes."""
    said = op.way.split("_")
    parts = _parts(op, costs) if op.way else []
    return max((steps.words for part, steps, _ in parts if part in said), default=0)


def function_steps(op: Compute, given: list[Window], costs: Costs) -> Steps | None:
    """The operations of one of ``BY_STEPS`` whose result is f16; None for others."""
    if op.kernel not in BY_STEPS or given[0].dtype != DType.F16:
        return None
    if op.kernel == "exp_sub":
        return exponentials(costs, *given)
    if op.kernel == "silu":
        return silu(costs, *given)
    return (gelu_by_tanh if op.params["form"] == "tanh" else gelu_by_erf)(costs, *given)


def turning_steps(
    costs: Costs, to: Window, source: Window, tables: tuple[Window, Window], row: Expr
) -> Steps:
    """The operations that turn all pairs of lanes of all heads of ``row``, by ``tables`` of cosines
    and sines."""
    (old_even, old_odd), (new_even, new_odd) = (
        [_lanes(window, row, which) for which in (0, 1)] for window in (source, to)
    )
    heads = to.dims[:-2]
    cosines, sines = (
        table.inner((*(Dim(dim.extent, 0) for dim in heads), *table.dims)) for table in tables
    )
    steps = Steps(costs)
    even, odd, even_by_odd, odd_by_even = (steps.room(old_even.size) for _ in range(4))
    steps.do("@fmuls", even_by_odd, old_odd, sines)
    steps.do("@fmuls", odd_by_even, old_even, sines)
    steps.do("@fmuls", even, old_even, cosines)
    steps.do("@fmuls", odd, old_odd, cosines)
    wide = to.dtype == DType.F32
    steps.do("@fsubs", new_even if wide else even, even, even_by_odd)
    steps.do("@fadds", new_odd if wide else odd, odd, odd_by_even)
    if not wide:
        steps.do("@fs2h", new_even, even)
        steps.do("@fs2h", new_odd, odd)
    return steps


def _parts(op: Compute, costs: Costs) -> list[tuple[str, Steps, int]]:
    """Parts of the ways that ``op`` has: the operations, and the cycles of what they replace."""
    given = [window(view, op.span) for view in op.operands if isinstance(view, View)]
    copied = one_by_one(op, given)
    windows = [_copy(one) if yes else one for one, yes in zip(given, copied, strict=True)]
    if op.kernel == "rope":
        to, source, frequencies = windows
        if frequencies.dtype != DType.F32 or source.dtype != DType.F32:
            return []
        tables = (_table(frequencies.size), _table(frequencies.size))
        angles = sines_and_cosines(costs, frequencies, *tables)
        turns = turning_steps(costs, to, source, tables, _FIRST_ROW)
        return [
            (ANGLES, angles, ANGLE * frequencies.size),
            (TURNS, turns, pair_by_pair(to, frequencies, costs)),
        ]
    steps = function_steps(op, given, costs)
    if steps is None:
        return []
    copies = sum(
        SETUP + costs.vector("convert", DType.F32, w.size, ()) for w in windows if w not in given
    )
    return [(VECTOR, steps, by_rows(op, windows, costs) + copies)]


def _lanes(window: Window, row: Expr, which: int) -> Window:
    """All lanes 2 n + which of ``row``, of all heads."""
    lanes = window.dims[-1]
    moved = window.moved(which * lanes.stride)
    if len(window.dims) > 1:
        moved = moved.moved(row * window.dims[-2].stride)
    return moved.inner((*window.dims[:-2], Dim(lanes.extent // 2, 2 * lanes.stride)))


def _copy(source: Window) -> Window:
    """f32 memory like that of the copies of operands."""
    dims = dense(source.dims)
    buffer = Value("copy", BufferType(DType.F32, (source.size,)))
    return Window(buffer, DType.F32, Expr.const(0), dims)


def _table(size: int) -> Window:
    buffer = Value("table", BufferType(DType.F32, (size,)))
    return Window(buffer, DType.F32, Expr.const(0), (Dim(size, 1),))
