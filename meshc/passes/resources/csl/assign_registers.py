"""assign-csl-registers: descriptor registers of the sums of products, and of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.sum_registers import assigned
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class AssignCslRegisters(Pass):
    """Say which descriptor registers (DSRs) hold sums of products and operands of functions.

    ``dsr = 1`` are those that a product loads when it is called. Sums that are one row at one place
    have registers of their own, 2 to 7, which are loaded before the start; calls with the same row
    share them. Where there are more rows the others take the first. ``dsr = 8`` are those in which
    the vector operations of functions of elements, of maxima and sums across rows, and of sines and
    cosines of a RoPE, find what several of them change or read, so that each is loaded once;
    ``functions=false`` lets each operation load its own.

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

    functions: bool = True

    def run(self, module: Module, report: Diagnostics) -> Module:
        for op, number in assigned(module, self.functions):
            op.dsr = number
        return module
