"""Registers of descriptors (DSRs) in which mapped products keep their sums and the rows they add,
and functions of vector operations what they change and read (``held.py``).

A destination and the first source of one operation carry the same number; number 0 belongs to the
host's transfers (vendor's documentation, DSRs and release notes 0.9 and 2.10). The second source,
which moves over the rows that are added, is loaded at each call and so the same for all products.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshc.analysis.csl.factors import Product
from meshc.analysis.csl.held import FUNCTIONS
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.products import Plan, planned_call
from meshc.analysis.csl.strided_windows import Window
from meshc.analysis.csl.vector_ways import takes_registers
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute

AT_CALL = 1
"""The registers that products load when they are called, whatever they held before."""
LAST = 7
"""The last number that products take. Registers between hold one row from the start on."""


def assigned(module: Module, functions: bool = True) -> Iterator[tuple[Compute, int]]:
    """The registers of each call's sums: for rows that lie at one place registers of their own as
    long as there are any, in the order of first use; 0 for calls that take none. Of ``functions``
    the first of those that all of them share."""
    taken: dict[str, int] = {}
    for op, plan in _calls(module):
        if plan is None:
            yield op, FUNCTIONS if functions and takes_registers(op) else 0
        elif not _one_row(plan):
            yield op, AT_CALL
        else:
            row = str(_row(plan.product))
            if row not in taken and AT_CALL + len(taken) < LAST:
                taken[row] = AT_CALL + 1 + len(taken)
            yield op, taken.get(row, AT_CALL)


def wrong_register(module: Module) -> str | None:
    """What is wrong with the registers that calls say, in words; None where each mapped product has
    registers that no other row is kept in."""
    kept: dict[int, str] = {}
    for op, plan in _calls(module):
        if plan is None:
            if op.dsr and not (op.dsr == FUNCTIONS and takes_registers(op)):
                return f"a call of '{op.kernel}' takes no registers and says dsr {op.dsr}"
            continue
        name = f"a product into %{plan.product.c.buffer.name}"
        if not op.dsr:
            return f"{name} does not say which registers hold its sums"
        if not AT_CALL <= op.dsr <= LAST:
            return f"{name} says dsr {op.dsr}, and products take {AT_CALL} to {LAST}"
        if op.dsr == AT_CALL:
            continue
        if not _one_row(plan):
            return f"{name} has sums in several places, and dsr {op.dsr} holds one"
        row = str(_row(plan.product))
        if kept.setdefault(op.dsr, row) != row:
            return f"{name} says dsr {op.dsr}, which holds another row"
    return None


def _calls(module: Module) -> Iterator[tuple[Compute, Plan | None]]:
    """Every call of a kernel, with its plan if that maps a function over factors."""
    costs = Costs(module.the_device())
    for op in module.walk():
        if isinstance(op, Compute):
            gemm = op.kernel == "gemm"
            plan = planned_call(op, costs) if gemm else None
            yield op, plan if plan is not None and plan.form in ("mapped", "packed") else None


def _one_row(plan: Plan) -> bool:
    """Whether the sums of a product may have registers for good; packed ones lie in blocks."""
    return plan.form == "mapped" and plan.product.one_row


def _row(product: Product) -> Window:
    """The row of sums of a product that has one."""
    return product.c.inner(product.c.dims[1:]).merged()
