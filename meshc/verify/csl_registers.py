"""csl_registers: each mapped product of a CSL program has registers that hold no other row."""

from __future__ import annotations

from meshc.analysis.csl.sum_registers import wrong_register
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Registers of sums are those that products may take, those that are loaded before the start
    hold one row at one place, and no other call says any."""
    wrong = wrong_register(module)
    if wrong is not None:
        fail("csl-registers-wrong", wrong, help="the pass assign-csl-registers gives registers")
