"""Numbers of the cases that a program's statements become, as ``pe/program.py`` writes them."""

from __future__ import annotations

from math import isqrt

from meshc.analysis.csl.instruction_costs import COMPARED, STORE
from meshc.analysis.csl.joined_transfers import Transfers
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import For, Sweep, Wait

FEW = 8
"""So many cases stay in one switch."""


def together(count: int, grouped: bool = True) -> int:
    """How many of ``count`` cases a switch holds. A core that is to go on with a case compares
    ``pc`` with one case after the other; a test for each group of cases, whose number is the root
    of theirs, leads to the switch of the group."""
    return isqrt(count - 1) + 1 if grouped and count > FEW else count


class Cases:
    """``after`` a wait, a loop or a guarded sweep, and ``head`` of a loop or sweep, by ``id``; a
    block whose end is waited for counts as a wait. ``count`` of all, 1 where nothing suspends;
    ``grouped`` as :func:`together` says. Where waits lead on ``direct``, those with which the
    rounds of ``closed`` loops end lead to the next round."""

    def __init__(
        self, module: Module, transfers: Transfers, grouped: bool = True, direct: bool = True
    ) -> None:
        self.transfers = transfers
        self.grouped = grouped
        self.direct = direct
        self.closed: set[int] = set()
        self.after: dict[int, int] = {}
        self.head: dict[int, int] = {}
        self.count = 1
        self._visit(module.program.body)

    def switched(self, number: int) -> int:
        """Cycles from setting ``pc`` to the first statement of a case: groups, and then the cases
        of one, are tried in turn."""
        each = together(self.count, self.grouped)
        group, place = divmod(number, each)
        groups = -(-self.count // each)
        cases = min(each, self.count - group * each)
        tried = min(group + 1, groups - 1) + min(place + 1, cases - 1)
        return STORE + 1 + COMPARED * tried if self.count > 1 else 0

    def _visit(self, block: Block) -> None:
        for op in block.ops:
            group = self.transfers.of_wait.get(op) if isinstance(op, Wait) else None
            if group is not None and not group.at_once:
                self._end(id(op))
            if self._has_cases(op):
                self.head[id(op)] = self._next()
            closing = self.transfers.closing(op) if isinstance(op, For) and self.direct else None
            if closing is not None:
                self.closed.add(id(op))
                self.after[closing] = self.head[id(op)]
            for region in op.regions:
                self._visit(region)
            if self._has_cases(op):
                self.after[id(op)] = self._next()
        group = self.transfers.of_block.get(id(block))
        if group is not None and not group.at_once:
            self._end(id(block))

    def _end(self, wait: int) -> None:
        """The case behind a wait, unless it leads elsewhere."""
        if wait not in self.after:
            self.after[wait] = self._next()

    def _has_cases(self, op: Op) -> bool:
        if not isinstance(op, (For, Sweep)) or not self.transfers.suspends_in(op.regions[0]):
            return False
        return isinstance(op, For) or not (op.when is None or op.when.is_true)

    def _next(self) -> int:
        self.count += 1
        return self.count - 1
