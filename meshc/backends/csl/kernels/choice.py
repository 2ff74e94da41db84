"""The choice of an element: where on a core the largest one of all stands first."""

from __future__ import annotations

from meshc.analysis.csl.choosing import search_cycles
from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.element_costs import FOUND, OF_A_CHOSEN_ROW, READ
from meshc.analysis.csl.windows import Window, own
from meshc.backends.csl.kernels.rows import Row, Rows
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin, element
from meshc.backends.csl.spelling.expressions import expression
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail


class Choice(Rows):
    """Writer of the kernel, with the functions of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        super().__init__(code, costs)
        self.writers = {"first_at": self._first_at}

    def cycles(self, op: Compute, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles on a core that does not have the element, and so looks at all it has."""
        to, source, _ = windows
        around, address = OF_A_CHOSEN_ROW if to.size > 1 else (0, 0)
        address += READ
        search = search_cycles(
            source.dims[-1].extent,
            lambda half: address + costs.vector("convert", source.dtype, half, ()),
        )
        return to.size * (FOUND + around + search)

    def _first_at(self, op: Compute, windows: list[Window]) -> list[str]:
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
        here = expression(rank, self.code.descriptors.spell)

        def write(row: Row) -> list[str]:
            lane = row[1].moved(own("lane") * lanes.stride)
            top = self._cell(row[2])
            return [
                *first_of(self.code, row[1], top),
                f"const index = @as(f32, {here}) * {block}.0 + @as(f32, lane);",
                f"const found = {self._cell(lane)} == {top} and index < {limit}.0;",
                f"{self._cell(row[0])} = if (found) -index else {none};",
            ]

        lines = self._each(to, (to, source, tops), write)
        return lines if to.size > 1 else ["{", *(PAD + line for line in lines), "}"]


def first_of(code: SharedCode, row: Window, top: str) -> list[str]:
    """The ``lane`` of a ``row`` at which ``top``, its largest, stands first: the first half of the
    lanes while it has an equal one, else the second, until one lane is left."""
    (lanes,) = row.dims
    half = code.descriptors.memory(row.moved(own("lane") * lanes.stride))
    most = f"{builtin('fmax', row.dtype)}(&most, most, @set_dsd_length({half}, @as(u16, half)));"
    lowest = literal(float("-inf"), row.dtype)
    return [
        "var lane: i16 = 0;",
        f"var many: i16 = {lanes.extent};",
        "while (many > 1) {",
        f"{PAD}const half = many >> 1;",
        f"{PAD}var most: {element(row.dtype)} = {lowest};",
        f"{PAD}{most}",
        f"{PAD}if (most == {top}) {{",
        f"{PAD}{PAD}many = half;",
        f"{PAD}}} else {{",
        f"{PAD}{PAD}lane += half;",
        f"{PAD}{PAD}many -= half;",
        f"{PAD}}}",
        "}",
    ]
