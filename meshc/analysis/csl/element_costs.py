"""What functions that are called for one element, row or pair of lanes at a time take, to choose
between them and vector operations.

Cycles of programs that are emitted are read off their statements, which are written when the way
is chosen; these numbers are those of such statements, one kernel at a time.
"""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import LENGTH, OFFSET, Costs, around_pass, walked
from meshc.analysis.csl.strided_windows import Window, first_part, rounds
from meshc.analysis.csl.ways import NEWTON
from meshc.ir.functions import FUNCTIONS
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

ANGLE = 381
"""One angle with its sine and cosine."""
_OF_AN_ELEMENT = {
    "exp_sub": 47,
    "exp": 45,
    "silu": 97,
    "gelu_erf": 121,
    "gelu_tanh": 73,
    "tanh": 65,
    "sigmoid": 97,
    "quick_gelu": 97,
}
"""A function of one element of f32, by kernel and form."""
_FROM_AND_TO_F16 = 2
"""An element of 16 bits, whose function is one of f32."""
_DIFFERENCE_IN_F16 = 3
"""An element of 16 bits and what is taken away from it."""
_OF_A_ROW = {
    "row_sum": 2,
    "row_max": 2,
    "square_sum": 2,
    "div": 56,
    "rms_scale": 160,
    "inverse_rms": 151,
    "exp_sub": 2,
    "merge_softmax": 167,
}
"""The scalar code of a row, a division and a root included."""
_OF_VECTORS = ("relu2", "clamp")
"""Functions of elements that are vector operations."""
_OF_A_PACKAGE = 97
"""A function of one element that a package brings: as those of meshc that divide."""
_OF_A_MASK = 24
"""The scalar code of a row of a causal mask, and of its first key that is not seen."""
_OF_A_MASKED_HEAD = (19, 10)
"""The loop around a head of such a row, and its descriptor; where the loop is written out, as that
of the heads of a single row is, its descriptor and length."""
_STATEMENTS_OF_A_HEAD = 18
"""Operations of a head that make the loop longer to write out."""
_BY_NEWTON = {"div": (16, 15), "rms_scale": (26, 23)}
"""The same where a reciprocal or a root is Newton's, and the loop around such a row."""
_AROUND_NEWTON = 9
"""Around that loop."""
_LOOPED = 17
"""The loop around a row, and moving its descriptors."""
_MOVED_BESIDE = {"exp_sub": 9, "rms_scale": 8}
"""What the loop around a row moves besides, where elements or factors have a loop of their own."""
_MOVED_ALONE = 8
"""Moving its descriptors where the loop is written out."""
_BY_PARTS = ("row_sum", "row_max", "exp_sub", "div")
"""Those that take a row in parts where no DSD walks through it."""
_OF_A_PART = 18
"""The loop around a part of a row through which no DSD walks at once, its descriptor, and where the
sum of the row is, twice."""
_STATEMENTS = 10
"""Operations of a row that make the loop longer to write out and take no cycles."""
_PAIR = {False: 7, True: 52}
"""A pair of lanes besides its four operations: the only one, and one of several, for which
descriptors are moved."""


def goes_by_rows(kernel: str) -> bool:
    """Whether a kernel goes row by row, or calls a function for each element."""
    return kernel in _OF_A_ROW or (kernel in FUNCTIONS and kernel not in _OF_VECTORS)


def by_rows(op: Compute, windows: list[Window], costs: Costs) -> int:
    """Cycles of a kernel that goes row by row, with a call of a function for each element."""
    whole = max(windows, key=lambda w: w.size)
    function = "_".join([op.kernel, *map(str, op.params.values())])
    if op.kernel in FUNCTIONS:
        each = _OF_AN_ELEMENT.get(function, _OF_A_PACKAGE)
        return (each + _FROM_AND_TO_F16 * whole.dtype.half) * whole.size
    rows = windows[2].size if op.kernel == "rms_scale" else min(w.size for w in windows)
    if op.kernel == "merge_softmax":
        rows = rows // windows[0].dims[-1].extent * softmaxes(op)
    lanes = whole.size // rows
    kind = DType.F32 if op.kernel == "merge_softmax" else whole.dtype
    multiplied, added = (costs.vector(name, kind, lanes, ()) for name in ("mul", "add"))
    if op.kernel == "row_max":
        added = costs.vector("convert", kind, lanes, ())
    small = min(windows, key=lambda w: len(w.dims))
    in_parts = _in_parts(whole, len(small.dims)) if op.kernel in _BY_PARTS else 0
    each = {
        "div": multiplied + in_parts,
        "rms_scale": (3 - kind.half) * multiplied + kind.half,
        "inverse_rms": 0,
        "exp_sub": (_OF_AN_ELEMENT["exp_sub"] + _DIFFERENCE_IN_F16 * kind.half) * lanes + in_parts,
        "merge_softmax": 3 * multiplied,
    }.get(op.kernel, walked(2, 1) + added + in_parts)
    if op.way == NEWTON:
        scalar, moved = _BY_NEWTON[op.kernel]
        return rows * (scalar + each) + (rows * moved + _AROUND_NEWTON if rows > 1 else 0)
    scalars = _OF_A_ROW[op.kernel] + walked(2, 1) + OFFSET + _STATEMENTS
    moved = _LOOPED if around_pass(rows, scalars) else _MOVED_ALONE
    moved += _MOVED_BESIDE.get(op.kernel, 0)
    found = rows * (_OF_A_ROW[op.kernel] + each + (moved if rows > 1 else 0))
    if op.kernel == "square_sum":
        met = 1 if kind.half else 2  # both factors are read from one bank group
        found += walked(3) + met * costs.vector("mul", kind, whole.size, ())
        if whole.dtype != windows[0].dtype:
            found += walked(2) + costs.vector("convert", kind, whole.size, ())
    return found


def _in_parts(source: Window, rows: int) -> int:
    """What an operation on a row of ``source``, whose first ``rows`` dims count rows, takes longer
    where lengths are known only when the program runs: one for each part that a DSD walks."""
    loops, (part,) = first_part([source.trailing(max(len(source.dims) - rows, 1))])
    if part.constant and not loops:
        return 0
    parts = rounds(loops)
    length = 0 if part.constant else LENGTH
    return parts * length + (parts * _OF_A_PART + (parts - 1) * walked(2, 1) if loops else 0)


def rows_masked(scores: Window, costs: Costs) -> int:
    """Cycles of a causal mask of scores [*heads, rows, keys], which hides half of the keys."""
    *heads, rows, keys = scores.dims
    each = walked(1, 1) + costs.vector("add", scores.dtype, keys.extent // 2, (1,))
    count = scores.inner(heads).size
    alone = rows.extent == 1 and not around_pass(count, _STATEMENTS_OF_A_HEAD)
    return rows.extent * (_OF_A_MASK + count * (_OF_A_MASKED_HEAD[alone] + each))


def softmaxes(op: Compute) -> int:
    """How many softmaxes lie side by side in the operands of a ``merge_softmax``."""
    count = op.params["count"]
    assert isinstance(count, int)
    return count


def pair_by_pair(to: Window, frequencies: Window, costs: Costs) -> int:
    """Cycles of a row of a ``rope`` whose pairs of lanes are turned one after the other."""
    heads = to.size // (2 * frequencies.size * rows_of(to))
    each = 4 * (walked(3, 1) + costs.vector("mac", DType.F32, heads, ()))
    return frequencies.size * (each + _PAIR[frequencies.size > 1])


def rows_of(window: Window) -> int:
    """Rows of an operand [.., rows, lanes], the most that there can be."""
    return window.dims[-2].extent if len(window.dims) > 1 else 1
