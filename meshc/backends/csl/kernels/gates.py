"""Gates of experts: of each row so many times the largest element that is left.

A row's candidates are f32 in scratch. What is chosen, or not to be chosen, becomes minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable

from meshc.analysis.csl.choosing import Choosing, choosing, top_k_cycles
from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.windows import Window, own
from meshc.backends.csl.kernels.choice import first_of
from meshc.backends.csl.kernels.rows import Row, Rows
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType

_TINY = 1e-20
"""Added to the sum of gates that are divided by it."""
_LOWEST = literal(float("-inf"), DType.F32)


class Gates(Rows):
    """Writer of ``top_k``, with the functions and scratch of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        super().__init__(code, costs)
        self.writers: dict[str, Callable[[Compute, list[Window]], list[str]]] = {
            "top_k": self._top_k
        }

    def cycles(self, op: Compute, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles."""
        return top_k_cycles(op, windows, costs)

    def _top_k(self, op: Compute, windows: list[Window]) -> list[str]:
        to, scores, *bias = windows
        said = choosing(op, to.dims[-1].extent)
        left = self._scratch(said, 0, said.lanes)

        def write(row: Row) -> list[str]:
            gates, given = row
            taken = f"{self._cell(_element(gates))} = {self._cell(_element(given))};"
            added = [f"total += {self._wide_cell(given)};"] if said.normalised else []
            return [
                *self._candidates(left, gates, given, bias),
                *(self._groups_left(said, left) if said.groups > 1 else []),
                *self.code.set(gates, 0.0),
                *(["var total: f32 = 0.0;"] if said.normalised else []),
                *_times(said.count, [*self._largest(left), taken, *added, self._leave_out(left)]),
                *(self._normalised(gates, left) if said.normalised else []),
            ]

        lines = self._each(to.inner(to.dims[:-1]), (to, scores), write)
        if all(window.start.is_const for window in windows):
            return [f"{self.code.function('top_k', to, [], lines)}();"]
        return ["{", *(PAD + line for line in lines), "}"]

    def _scratch(self, said: Choosing, first: int, count: int) -> Window:
        return self.code.scratch_window(DType.F32, said.scratch, first, count)

    def _candidates(
        self, left: Window, gates: Window, given: Window, bias: list[Window]
    ) -> list[str]:
        """Scores, and a bias, whose sum is rounded to their type."""
        if not bias:
            return self.code.copied(left, given)
        sums = left if given.dtype == left.dtype else gates
        memory = self.code.descriptors.memory
        added = ", ".join(map(memory, (sums, given, *bias)))
        rounded = [] if sums is left else self.code.copied(left, sums)
        return [f"{builtin('fadd', given.dtype)}({added});", *rounded]

    def _groups_left(self, said: Choosing, left: Window) -> list[str]:
        """Elements of groups that are not kept become minus infinity."""
        best = self._scratch(said, said.lanes, said.groups)
        own_best = best.moved(own("group")).inner(best.dims[:0])
        size = self._scratch(said, 0, said.group)
        group = size.moved(own("group") * said.group)
        memory = self.code.descriptors.memory
        return [
            *_times(said.groups, self._rated(said, self._cell(own_best), group), "group"),
            *_times(said.kept, [*self._largest(best), self._leave_out(best)]),
            "// Of the groups that are kept minus infinity has taken the place of what they had.",
            *_times(
                said.groups,
                [
                    f"if ({self._cell(own_best)} != {_LOWEST}) {{",
                    f"{PAD}{builtin('fmov', DType.F32)}({memory(group)}, {_LOWEST});",
                    "}",
                ],
                "group",
            ),
        ]

    def _rated(self, said: Choosing, rating: str, group: Window) -> list[str]:
        """A group is as good as the sum of its best."""
        if said.best == 1:
            return [*self._largest(group)[:2], f"{rating} = largest;"]
        spare = self._scratch(said, said.lanes + said.groups, said.group)
        added = [*self._largest(spare), f"{rating} += largest;", self._leave_out(spare)]
        return [*self.code.copied(spare, group), f"{rating} = 0.0;", *_times(said.best, added)]

    def _largest(self, row: Window) -> list[str]:
        """``largest`` of a row, and the ``lane`` where it stands first."""
        most = f"{builtin('fmax', DType.F32)}(&largest, largest, "
        return [
            f"var largest: f32 = {_LOWEST};",
            f"{most}{self.code.descriptors.memory(row)});",
            *first_of(self.code, row, "largest"),
        ]

    def _leave_out(self, row: Window) -> str:
        return f"{self._cell(_element(row))} = {_LOWEST};"

    def _normalised(self, gates: Window, wide: Window) -> list[str]:
        """Gates divided by their sum, in f32."""
        memory = self.code.descriptors.memory
        inverse = f"1.0 / (total + {_TINY!r})"
        if gates.dtype == DType.F32:
            return [f"@fmuls({memory(gates)}, {memory(gates)}, {inverse});"]
        return [
            *self.code.copied(wide, gates),
            f"@fmuls({memory(wide)}, {memory(wide)}, {inverse});",
            *self.code.copied(gates, wide),
        ]

    def _wide_cell(self, row: Window) -> str:
        cell = self._cell(_element(row))
        return cell if row.dtype == DType.F32 else f"@as(f32, {cell})"


def _element(row: Window) -> Window:
    """The element ``lane`` of a row."""
    return row.moved(own("lane") * row.dims[-1].stride)


def _times(count: int, body: list[str], variable: str = "_") -> list[str]:
    """``body`` so many times, in a scope of its own."""
    return [f"for (@range(i16, {count})) |{variable}| {{", *(PAD + line for line in body), "}"]
