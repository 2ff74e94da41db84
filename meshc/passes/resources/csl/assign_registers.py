"""assign-csl-registers: descriptor registers of the sums of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.registers import assigned
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class AssignCslRegisters(Pass):
    """Say at each mapped product which descriptor registers (DSRs) hold its sums.

    ``dsr = 1`` are those that a product loads when it is called. Sums that are one row at one place
    have registers of their own, 2 to 7, which are loaded before the start; calls with the same row
    share them. Where there are more rows the others take the first.

    Before::

        tile.gemm %h, %x, %w {accumulate = false, transposed = false, way = mapped}

    After::

        tile.gemm %h, %x, %w {accumulate = false, transposed = false, way = mapped, dsr = 2}
    """

    NAME: ClassVar[str] = "assign-csl-registers"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"csl_products"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_registers"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        for op, number in assigned(module):
            op.dsr = number
        return module
