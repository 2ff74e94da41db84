"""csl_functions: functions of elements that say a way can be written so."""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.unread import may_go_over
from meshc.analysis.csl.vector_ways import wrong_way
from meshc.analysis.csl.ways import goes_over
from meshc.analysis.csl.words import known_at_start
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Besides products no kernel says a way but functions of elements that have it: of f16
    elements, with as many dims as descriptors have and extents that are known, or in blocks that go
    over the end of what the run says where nobody reads what lies behind it."""
    costs, known = Costs(module.the_device()), known_at_start(module)
    for op in module.walk():
        if (
            isinstance(op, Compute)
            and op.kernel != "gemm"
            and op.way
            and wrong_way(op, costs, known, goes_over(op) and may_go_over(module, op))
        ):
            fail(
                "csl-functions-wrong",
                f"the kernel '{op.kernel}' cannot be written in the way '{op.way}'",
                op.span,
                help="the pass select-csl-functions gives ways",
            )
