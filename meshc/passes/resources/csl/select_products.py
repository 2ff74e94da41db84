"""select-csl-products: the way in which each product of a CSL program is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.banks import shifts
from meshc.analysis.csl.factors import apart
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.product_choice import Choices, best
from meshc.analysis.csl.shared_buffers import planned_bytes
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics

_SHARE = 4
"""Products with extents of the run may take one part in so many of the free memory for scratch:
their programs have more code than the device's reserve."""


@dataclass(frozen=True)
class SelectCslProducts(Pass):
    """Write each ``gemm`` in the way that has the fewest predicted cycles.

    ``mapped`` and ``looped`` add a row times a factor at a time, the one with a register that
    moves over rows that follow each other, and ``packed_by_8`` first copies rows of eight columns
    one behind the other; all of them also for the transposed product. ``outer_8`` takes
    the products of eight columns and rows at once into scratch, of which a core must have enough
    beside its buffers and what the device reserves, and adds them by halves. ``outer_8_by_4`` does
    so for extents that are known only when the program runs: four rows at once, or four columns,
    and those that are left one by one.

    A mapped or packed product that is ``_rebased`` loads its registers once and gives them the
    address of row after row, where they are loaded anew for each row otherwise. A mapped product of
    one row that is ``_fresh`` writes what its first factor gives over the row, where zeros are
    written before the first product otherwise. One that is
    ``_joined`` has the heads that share its right factor among its rows, and chunks that are added
    up in one contraction, in place of a loop over products.

    ``blocks``: whether outer and packed products are tried for extents of the run.
    ``rebased``, ``joined``, ``fresh``: whether such products are tried.

    Before::

        tile.gemm %h, %x, %w {accumulate = false, transposed = false}

    After::

        tile.gemm %h, %x, %w {accumulate = false, transposed = false, way = mapped_fresh}
    """

    NAME: ClassVar[str] = "select-csl-products"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_products"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"csl_memory", "csl_registers", "csl_words"})

    blocks: bool = True
    rebased: bool = True
    joined: bool = True
    fresh: bool = True

    def run(self, module: Module, report: Diagnostics) -> Module:
        device = module.the_device()
        room = device.whole("memory_bytes") - device.reserved_bytes - planned_bytes(module)
        costs = Costs(device, shifts(module))
        tried = Choices(self.blocks, self.rebased, self.joined, self.fresh)
        for op in module.walk():
            if isinstance(op, Compute) and op.kernel == "gemm":
                accumulate = bool(op.params["accumulate"])
                call = apart(op)
                free = room if call.product.constant else room // _SHARE
                op.way = best(call, costs, free, accumulate, tried).way
        return module
