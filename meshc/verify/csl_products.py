"""csl_products: each product of a CSL program says a way in which it can be written."""

from __future__ import annotations

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.products import planned_call
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """The rows of a mapped product follow each other, an outer one has factors of one type and is
    no deeper than the product."""
    costs = Costs(module.the_device())
    for op in module.walk():
        if not isinstance(op, Compute) or op.kernel != "gemm":
            continue
        if not op.way:
            wrong = "a product does not say in which way it is written"
        elif planned_call(op, costs) is None:
            wrong = f"a product cannot be written in the way '{op.way}'"
        else:
            continue
        fail("csl-products-wrong", wrong, op.span, help="the pass select-csl-products gives ways")
