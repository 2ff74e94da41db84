"""Kernels of rows that gates send to experts: a test for each row and expert, and nothing more for
those that have nothing to do with each other."""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.strided_windows import Dim, Window, own
from meshc.backends.csl.kernels.by_rows import Row, Rows
from meshc.backends.csl.kernels.shared_code import SharedCode
from meshc.backends.csl.spelling.memory_dsds import builtin
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

_ROW_OF_WEIGHTS = "depth"


class Routing(Rows):
    """Writers of these kernels, with the functions and scratch of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        super().__init__(code, costs)
        self.writers = {
            "dispatch": self._dispatch,
            "expert_gemm": self._expert_gemm,
            "combine": self._combine,
        }

    def _dispatch(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source, gates = windows
        *rows, lanes = source.dims
        everywhere = source.inner((*rows, _repeated(gates.dims[-1]), lanes))

        def write(row: Row) -> list[csl.Statement]:
            return [self._where_routed(row[2], self.code.copied(row[0], row[1]))]

        return [*self.code.set(to, 0.0), *self._each(gates, (to, everywhere, gates), write)]

    def _combine(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source, gates = windows
        *rows, lanes = to.dims
        sums = to.inner((*rows, _repeated(gates.dims[-1]), lanes))

        def write(row: Row) -> list[csl.Statement]:
            total, value, gate = row
            by = self.code.descriptors.cell(gate)
            weighted = self.code.operation("fmac", (total, total, value), by)
            return [self._where_routed(gate, [weighted])]

        return [*self.code.set(to, 0.0), *self._each(gates, (sums, source, gates), write)]

    def _expert_gemm(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """A row times the weights of one expert: element after element of the row times a row of
        the weights."""
        to, source, weights, gates = windows
        if source.dtype != weights.dtype or (to.dtype.half and source.dtype == DType.F32):
            kinds = f"{source.dtype} and {weights.dtype} into {to.dtype}"
            fail("csl-dtype", f"products of {kinds}", op.span)
        add = "@fmachs" if to.dtype != source.dtype else builtin("fmac", to.dtype)
        depth, experts, columns = weights.dims
        rows = (_repeated(dim) for dim in gates.dims[:-1])
        matrices = weights.inner((*rows, experts, depth, columns))

        def write(row: Row) -> list[csl.Statement]:
            memory, at = self.code.descriptors.memory, own(_ROW_OF_WEIGHTS)
            first = memory(row[2].moved(at * depth.stride).inner((columns,)))
            factor = self.code.descriptors.cell(row[1].moved(at * row[1].dims[0].stride))
            step = csl.loop(
                _ROW_OF_WEIGHTS, depth.extent, [csl.do(add, "row", "row", first, factor)]
            )
            return [self._where_routed(row[3], [csl.const("row", memory(row[0])), step])]

        return [*self.code.set(to, 0.0), *self._each(gates, (to, source, matrices, gates), write)]

    def _where_routed(self, gate: Window, body: csl.Statements) -> csl.Statement:
        """``body`` if the row is sent to the expert."""
        return csl.when(csl.infix(self.code.descriptors.cell(gate), "!=", 0.0), body)


def _repeated(dim: Dim) -> Dim:
    """The same elements for all of ``dim``."""
    return Dim(dim.extent, 0, dim.count)
