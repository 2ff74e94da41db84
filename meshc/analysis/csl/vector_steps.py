"""Functions of many elements as vector operations, one after the other, with their cycles.

A function of one element costs a call and the library's routine for each; operations on memory cost
a set-up and then an element or more in each cycle. Polynomials are evaluated by Horner's rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.csl.held import Operand, Operation, Place, held, places
from meshc.analysis.csl.instruction_costs import (
    BANKS,
    CONSTANT,
    DESCRIPTOR,
    WRITTEN,
    Costs,
    operation_steps,
    setup,
)
from meshc.analysis.csl.strided_windows import MOST_DIMS, Dim, Window
from meshc.ir.affine import Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

_ROUND = 12582912.0
"""1.5 * 2^23: an f32 below 2^22 that is added to it is rounded to a whole number."""


class Steps:
    """Operations on scratch of ``words`` elements of f32, or of another ``dtype``; operands that
    are ``held`` lie in registers, by where they are."""

    def __init__(self, costs: Costs, dtype: DType = DType.F32) -> None:
        self.costs = costs
        self.dtype = dtype
        self.words = 0
        self.operations: list[Operation] = []
        self.held: dict[Place, tuple[int, Window]] = {}
        self._steps: list[int] = []

    def hold(self) -> Steps:
        """Let registers hold what the operations name often."""
        self.held = held(self.operations)
        return self

    @property
    def cycles(self) -> int:
        """Predicted cycles of all operations, and of loading the registers."""
        now, ready = 0, dict[Place, int]()
        for place in self.held:
            now += CONSTANT
            ready[place] = now + WRITTEN
        for operation, steps in zip(self.operations, self._steps, strict=True):
            here = [ready[one] for one in places(operation) if one in ready]
            now += setup(operation[1]) - DESCRIPTOR * len(here)
            now = max(now, *here) + steps if here else now + steps
        return now

    @property
    def bytes(self) -> int:
        """Bytes of the scratch."""
        return self.words * self.dtype.bytes

    @property
    def fits(self) -> bool:
        """Whether descriptors have enough dims for all operands, whose extents are known when the
        program is compiled."""
        windows = (o for _, all_ in self.operations for o in all_ if isinstance(o, Window))
        return all(_fits(window) for window in windows)

    def room(self, size: int) -> Window:
        """Scratch for ``size`` elements, apart from what was asked for before. Arrays begin in
        bank groups that follow each other, so that an operation reads two of them at once."""
        first, self.words = self.words, self.words + -(-size // BANKS) * BANKS + 1
        buffer = Value(f"scratch_{self.dtype}", BufferType(self.dtype, (self.words,)))
        return Window(buffer, self.dtype, Expr.const(first), (Dim(size, 1),))

    def do(self, builtin: str, to: Window, *operands: Operand) -> None:
        """One operation."""
        self.operations.append((builtin, (to, *operands)))
        sources = [one for one in operands if isinstance(one, Window)]
        self._steps.append(round(operation_steps(self.costs, builtin, to, sources)))

    def wide(self, of: Window, room: Window) -> Window:
        """The elements of ``of`` in the type of scratch: those of another are converted to
        ``room``."""
        if of.dtype == self.dtype:
            return of
        self.do("@fh2s" if self.dtype == DType.F32 else "@fs2h", room, of)
        return room

    def polynomial(self, to: Window, of: Window, coefficients: Sequence[float]) -> None:
        """Its value at each element of ``of``; the constant term comes first."""
        *lower, last = coefficients
        kind = "s" if self.dtype == DType.F32 else "h"
        self.do(f"@fmul{kind}", to, of, last)
        for term in reversed(lower[1:]):
            self.do(f"@fadd{kind}", to, to, term)
            self.do(f"@fmul{kind}", to, to, of)
        self.do(f"@fadd{kind}", to, to, lower[0])

    def round(self, to: Window) -> None:
        """The whole numbers nearest to what is there, which is below 2^22."""
        self.do("@fadds", to, to, _ROUND)
        self.do("@fsubs", to, to, _ROUND)


def _fits(window: Window) -> bool:
    known = all(dim.count is None for dim in window.dims)
    return known and len(window.fewest) <= MOST_DIMS
