"""The choice of an element: where on a core the largest one of all stands first."""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.strided_windows import Window, own
from meshc.backends.csl.kernels.by_rows import Row, Rows
from meshc.backends.csl.kernels.shared_code import SharedCode, literal
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import builtin, element, resized
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail


class Choice(Rows):
    """Writer of the kernel, with the functions of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        super().__init__(code, costs)
        self.writers = {"first_at": self._first_at}

    def _first_at(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """Lanes without an element come last."""
        to, source, tops = windows
        if source.dtype == DType.BF16 or tops.dtype == DType.BF16:
            fail("csl-dtype", f"'{op.kernel}' of bf16", op.span, help="sums in f32 are compared")
        rank, block, limit = op.params["rank"], op.params["block"], op.params["limit"]
        lanes = source.dims[-1]
        assert isinstance(rank, Expr) and isinstance(block, int) and isinstance(limit, int)
        if lanes.count is not None:
            fail("csl-extent", f"'{op.kernel}' of as many lanes as the run says", op.span)
        none = literal(float("-inf"), DType.F32)
        here = csl.cast("f32", expression(rank, self.code.descriptors.spell))

        def write(row: Row) -> list[csl.Statement]:
            cell = self.code.descriptors.cell
            top = cell(row[2])
            is_top = csl.infix(cell(row[1].moved(own("lane") * lanes.stride)), "==", top)
            return [
                *first_of(self.code, row[1], top),
                csl.const("index", here * float(block) + csl.cast("f32", "lane")),
                csl.const("found", csl.infix(is_top, "and", csl.infix("index", "<", float(limit)))),
                csl.assign(cell(row[0]), csl.either(csl.Name("found"), -csl.Name("index"), none)),
            ]

        body = self._each(to, (to, source, tops), write)
        return body if to.size > 1 else [csl.scope(body)]


def first_of(code: SharedCode, row: Window, top: csl.Operand) -> list[csl.Statement]:
    """The ``lane`` of a ``row`` at which ``top``, its largest, stands first: the first half of the
    lanes while it has an equal one, else the second, until one lane is left."""
    (lanes,) = row.dims
    passes = (lanes.extent - 1).bit_length()
    memory = code.descriptors.memory(row.moved(own("lane") * lanes.stride))
    half = resized(memory, "half", -(-lanes.extent // max(1, passes)))
    first = [csl.assign("many", "half")]
    second = [csl.assign("lane", "half", "+="), csl.assign("many", "half", "-=")]
    body = [
        csl.const("half", csl.infix("many", ">>", 1)),
        csl.var("most", element(row.dtype), literal(float("-inf"), row.dtype)),
        csl.do(builtin("fmax", row.dtype), csl.address("most"), "most", half),
        csl.when(csl.infix("most", "==", top), first, second),
    ]
    return [
        csl.var("lane", "i16", 0),
        csl.var("many", "i16", lanes.extent),
        csl.While(csl.infix("many", ">", 1), tuple(body), passes),
    ]
