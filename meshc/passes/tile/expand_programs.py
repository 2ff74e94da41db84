"""expand-programs: lower distributed ops to one guarded tile program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.module import Module, Program
from meshc.passes.base import Pass
from meshc.passes.tile.expand.function import FunctionExpander
from meshc.passes.tile.expand.neighbours import join_neighbours
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class ExpandPrograms(Pass):
    """Lower the mesh level to the tile level: buffers, microkernels and explicit transfers.

    One program per phase; what differs between cores are guards, so the size of the text depends
    neither on the mesh nor on the number of layers. Every collective must have its algorithm.

    Before::

        %y = mesh.gemv %x, %w {contract = [E]}
        %y_1 = mesh.all_reduce %y {axis = y, algo = k_tree, groups = [3]}

    After::

        channel @chain_y_1 "{ [y, x] -> [y - 1, x] : y >= 1 }"
        tile.gemm %y as [1, 3], %x as [1, 3], %w
        tile.sweep {rank = "2 - y", count = 3} {
          %sent = tile.send @chain_y_1, %y {when = "y = 2"}
          %passed = tile.relay @chain_y_1, @chain_y_1, %y {when = "y = 1"}
          %got = tile.recv @chain_y_1, %y {combine = add, when = "y = 0"}
        }
    """

    NAME: ClassVar[str] = "expand-programs"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset(
        {"partitioned", "padding_safe", "placed", "collectives_selected"}
    )
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset(
        {"guards_cover", "channels_matched", "deadlock_free"}
    )
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        expander = FunctionExpander(module)
        block = expander.expand(module.function)
        join_neighbours(block)
        found = expander.emitter.module
        found.programs = [Program(module.function.name, block)]
        packed = {port.name for port in found.ports}  # weights that nothing uses are not
        found.paired = {name: dim for name, dim in found.paired.items() if name in packed}
        return found
