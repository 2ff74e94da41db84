"""Gates of experts: of each row so many times the largest element that is left.

A row's candidates are f32 in scratch. What is chosen, or not to be chosen, becomes minus infinity.
"""

from __future__ import annotations

from meshc.analysis.csl.chosen_elements import Choosing, choosing
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.strided_windows import Window, own
from meshc.backends.csl.kernels.by_rows import Row, Rows, wide
from meshc.backends.csl.kernels.choice import first_of
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, literal
from meshc.backends.csl.spelling.memory_dsds import builtin
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

_TINY = 1e-20
"""Added to the sum of gates that are divided by it."""
_LOWEST = literal(float("-inf"), DType.F32)


class Gates(Rows):
    """Writer of ``top_k``, with the functions and scratch of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        super().__init__(code, costs)
        self.writers: dict[str, Writer] = {"top_k": self._top_k}

    def _top_k(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, scores, *bias = windows
        said = choosing(op, to.dims[-1].extent)
        left = self._scratch(said, 0, said.lanes)

        def write(row: Row) -> list[csl.Statement]:
            gates, given = row
            cell = self.code.descriptors.cell(_element(given))
            taken = csl.assign(self.code.descriptors.cell(_element(gates)), cell)
            added = [csl.assign("total", wide(cell, given.dtype), "+=")] if said.normalised else []
            return [
                *self._candidates(left, gates, given, bias),
                *(self._groups_left(said, left) if said.groups > 1 else []),
                *self.code.set(gates, 0.0),
                *([csl.var("total", "f32", 0.0)] if said.normalised else []),
                _times(said.count, [*self._largest(left), taken, *added, self._leave_out(left)]),
                *(self._normalised(gates, left) if said.normalised else []),
            ]

        body = self._each(to.inner(to.dims[:-1]), (to, scores), write)
        if all(window.start.is_const for window in windows):
            return [csl.do(self.code.function("top_k", to, [], body))]
        return [csl.scope(body)]

    def _scratch(self, said: Choosing, first: int, count: int) -> Window:
        return self.code.scratch_window(DType.F32, said.scratch, first, count)

    def _candidates(
        self, left: Window, gates: Window, given: Window, bias: list[Window]
    ) -> list[csl.Statement]:
        """Scores, and a bias, whose sum is rounded to their type."""
        if not bias:
            return self.code.copied(left, given)
        sums = left if given.dtype == left.dtype else gates
        rounded = [] if sums is left else self.code.copied(left, sums)
        return [self.code.operation("fadd", (sums, given, *bias)), *rounded]

    def _groups_left(self, said: Choosing, left: Window) -> list[csl.Statement]:
        """Elements of groups that are not kept become minus infinity."""
        best = self._scratch(said, said.lanes, said.groups)
        own_best = self.code.descriptors.cell(best.moved(own("group")).inner(best.dims[:0]))
        size = self._scratch(said, 0, said.group)
        group = size.moved(own("group") * said.group)
        hidden = csl.when(
            csl.infix(own_best, "!=", _LOWEST), [self.code.operation("fmov", (group,), _LOWEST)]
        )
        return [
            _times(said.groups, self._rated(said, own_best, group), "group"),
            _times(said.kept, [*self._largest(best), self._leave_out(best)]),
            csl.Remark(
                "Of the groups that are kept minus infinity has taken the place of what they had."
            ),
            _times(said.groups, [hidden], "group"),
        ]

    def _rated(self, said: Choosing, rating: csl.Expression, group: Window) -> list[csl.Statement]:
        """A group is as good as the sum of its best."""
        if said.best == 1:
            return [*self._largest(group)[:2], csl.assign(rating, "largest")]
        spare = self._scratch(said, said.lanes + said.groups, said.group)
        added = [
            *self._largest(spare),
            csl.assign(rating, "largest", "+="),
            self._leave_out(spare),
        ]
        return [*self.code.copied(spare, group), csl.assign(rating, 0.0), _times(said.best, added)]

    def _largest(self, row: Window) -> list[csl.Statement]:
        """``largest`` of a row, and the ``lane`` where it stands first."""
        most, memory = builtin("fmax", DType.F32), self.code.descriptors.memory(row)
        return [
            csl.var("largest", "f32", _LOWEST),
            csl.do(most, csl.address("largest"), "largest", memory),
            *first_of(self.code, row, "largest"),
        ]

    def _leave_out(self, row: Window) -> csl.Statement:
        return csl.assign(self.code.descriptors.cell(_element(row)), _LOWEST)

    def _normalised(self, gates: Window, spare: Window) -> list[csl.Statement]:
        """Gates divided by their sum, in f32."""
        inverse = csl.infix(1.0, "/", csl.infix("total", "+", _TINY))
        if gates.dtype == DType.F32:
            return [self.code.operation("fmul", (gates, gates), inverse)]
        return [
            *self.code.copied(spare, gates),
            self.code.operation("fmul", (spare, spare), inverse),
            *self.code.copied(gates, spare),
        ]


def _element(row: Window) -> Window:
    """The element ``lane`` of a row."""
    return row.moved(own("lane") * row.dims[-1].stride)


def _times(count: int, body: csl.Statements, variable: str = "_") -> csl.Statement:
    """``body`` so many times, in a scope of its own."""
    return csl.loop(variable, count, body)
