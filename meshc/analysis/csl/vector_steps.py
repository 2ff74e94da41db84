"""Functions of many elements as vector operations, one after the other, with their cycles.

A function of one element costs a call and the library's routine for each; operations on memory cost
a set-up and then an element or more in each cycle. Polynomials are evaluated by Horner's rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.csl.costs import BANKS, Costs, rows_of_grids, setup
from meshc.analysis.csl.windows import MOST_DIMS, Dim, Window
from meshc.ir.affine import Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

Operand = Window | float | str
"""Elements, a number, or the name of a scalar."""

_KINDS = {
    "@fmuls": ("mul", DType.F32),
    "@fmacs": ("mac", DType.F32),
    "@fadds": ("add", DType.F32),
    "@fsubs": ("add", DType.F32),
    "@fabss": ("add", DType.F32),
    "@fnegs": ("add", DType.F32),
    "@fmaxs": ("convert", DType.F32),
    "@fh2s": ("convert", DType.F32),
    "@fs2h": ("convert", DType.F32),
}
_ROUND = 12582912.0
"""1.5 * 2^23: an f32 below 2^22 that is added to it is rounded to a whole number."""


class Steps:
    """Operations on f32 scratch of ``words`` elements, and their predicted ``cycles``."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.cycles = 0
        self.words = 0
        self.operations: list[tuple[str, tuple[Operand, ...]]] = []

    @property
    def fits(self) -> bool:
        """Whether descriptors have enough dims for all operands, whose extents are known when the
        program is compiled."""
        windows = (o for _, all_ in self.operations for o in all_ if isinstance(o, Window))
        return all(_fits(window) for window in windows)

    def room(self, size: int) -> Window:
        """f32 scratch for ``size`` elements, apart from what was asked for before. Arrays begin in
        bank groups that follow each other, so that an operation reads two of them at once."""
        first, self.words = self.words, self.words + -(-size // BANKS) * BANKS + 1
        buffer = Value(f"scratch_{DType.F32}", BufferType(DType.F32, (self.words,)))
        return Window(buffer, DType.F32, Expr.const(first), (Dim(size, 1),))

    def do(self, builtin: str, to: Window, *operands: Operand) -> None:
        """One operation."""
        self.operations.append((builtin, (to, *operands)))
        kind, dtype = _KINDS[builtin]
        sources = [one for one in operands if isinstance(one, Window)]
        rows = rows_of_grids((to, *operands))
        self.cycles += setup((to, *operands)) + self.costs.vector(kind, dtype, to.size, (), rows)
        self.cycles += self.costs.meetings(sources)

    def wide(self, of: Window, room: Window) -> Window:
        """The elements of ``of`` in f32: what has 16 bits is converted to ``room``."""
        if of.dtype == DType.F32:
            return of
        self.do("@fh2s", room, of)
        return room

    def polynomial(self, to: Window, of: Window, coefficients: Sequence[float]) -> None:
        """Its value at each element of ``of``; the constant term comes first."""
        *lower, last = coefficients
        self.do("@fmuls", to, of, last)
        for term in reversed(lower[1:]):
            self.do("@fadds", to, to, term)
            self.do("@fmuls", to, to, of)
        self.do("@fadds", to, to, lower[0])

    def whole(self, to: Window, of: Window, factor: float) -> None:
        """The whole numbers nearest to products with ``factor``, which are below 2^22."""
        self.do("@fmuls", to, of, factor)
        self.do("@fadds", to, to, _ROUND)
        self.do("@fsubs", to, to, _ROUND)


def _fits(window: Window) -> bool:
    known = all(dim.count is None for dim in window.dims)
    return known and len(window.merged().dims) <= MOST_DIMS
