"""Numbers of the cases that a program's statements become, as ``pe/program.py`` writes them."""

from __future__ import annotations

from meshc.analysis.csl.transfers import Transfers
from meshc.backends.csl.kernels.scalar import COMPARED, STORE
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import For, Sweep, Wait


class Cases:
    """``after`` a wait, a loop or a guarded sweep, and ``head`` of a loop or sweep, by ``id``; a
    block whose end is waited for counts as a wait. ``count`` of all, 1 where nothing suspends."""

    def __init__(self, module: Module, transfers: Transfers) -> None:
        self.transfers = transfers
        self.after: dict[int, int] = {}
        self.head: dict[int, int] = {}
        self.count = 1
        self._visit(module.program.body)

    def switched(self, number: int) -> int:
        """Cycles from setting ``pc`` to the first statement of a case: cases are tried in turn."""
        tried = min(number + 1, self.count - 1)
        return STORE + 1 + COMPARED * tried if self.count > 1 else 0

    def _visit(self, block: Block) -> None:
        for op in block.ops:
            group = self.transfers.of_wait.get(op) if isinstance(op, Wait) else None
            if group is not None and not group.at_once:
                self.after[id(op)] = self._next()
            if self._has_cases(op):
                self.head[id(op)] = self._next()
            for region in op.regions:
                self._visit(region)
            if self._has_cases(op):
                self.after[id(op)] = self._next()
        group = self.transfers.of_block.get(id(block))
        if group is not None and not group.at_once:
            self.after[id(block)] = self._next()

    def _has_cases(self, op: Op) -> bool:
        if not isinstance(op, (For, Sweep)) or not self.transfers.suspends_in(op.regions[0]):
            return False
        return isinstance(op, For) or not (op.when is None or op.when.is_true)

    def _next(self) -> int:
        self.count += 1
        return self.count - 1
