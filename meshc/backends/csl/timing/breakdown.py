"""What the cycles of a program are spent on, op by op, beside their lower bound.

An op has the cycles by which the clock that is furthest moved on while it ran, so that those of all
ops add up to those of the program; the bound is shared out alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from meshc.analysis.csl.joined_transfers import Group
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.timing.cases import Cases
from meshc.backends.csl.timing.clocks import Timing
from meshc.backends.csl.timing.lower_bound import Bounds
from meshc.backends.csl.timing.prices import Prices
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send, Wait, channel_in, channel_out


@dataclass
class OpCycles:
    """One op, or the transfers of one wait: how often it is run, predicted ``cycles`` of all times,
    and the least that any program with its work and its messages takes. ``each`` says what one time
    of a kernel takes."""

    op: str
    kind: Literal["computes", "waits"]
    times: int = 0
    cycles: int = 0
    bound: int = 0
    each: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """Predicted ``cycles`` of a run, no fewer than ``bound``, and both by op."""

    cycles: int
    bound: int
    ops: tuple[OpCycles, ...]


def prediction(
    module: Module,
    kernels: Kernels,
    cases: Cases,
    calls: Collection[Op] = (),
    told: Mapping[str, int] = MappingProxyType({}),
) -> Prediction:
    """The prediction of ``module``; ``calls`` and ``told`` are those of :class:`Timing`."""
    timing = Timing(module, Prices(kernels, cases), cases, calls, told)
    bound = Timing(module, Bounds(kernels, cases), cases, calls, told)
    rows = _Rows(timing, bound)
    rows.block(module.program.body, 1)
    return Prediction(round(timing.cycles), round(bound.cycles), rows.told())


class _Rows:
    """The rows of a breakdown, in the order of the program."""

    def __init__(self, timing: Timing, bound: Timing) -> None:
        self._timing, self._bound = timing, bound
        self._found: dict[str, OpCycles] = {}

    def told(self) -> tuple[OpCycles, ...]:
        """Those that take anything."""
        return tuple(row for row in self._found.values() if row.cycles or row.bound)

    def block(self, block: Block, times: int, around: str = "begin and end") -> None:
        """Those of a block that is run so many ``times``, inside what is called ``around``."""
        timing = self._timing
        for op in block.ops:
            if isinstance(op, Compute):
                self._kernel(op, times)
            elif isinstance(op, (Send, Recv, Relay)):
                self._add(op, _transfers(timing.transfers.of_token[op.result]), "waits", 0)
            elif isinstance(op, Wait):
                group = timing.transfers.of_wait.get(op)
                if group is not None:
                    self._add(op, _transfers(group), "waits", times)
            for region in op.regions:
                rounds = 1
                if isinstance(op, For):
                    rounds = int(op.count.evaluate(timing.env, timing.coordinates.functions))
                inside = _inside(region, timing)
                self.block(region, times * rounds, inside)
                self._add(op, inside, "waits", 0)
        group = timing.transfers.of_block.get(id(block))
        if group is None:
            self._add(block, around, "waits", 0)
        else:
            self._add(block, _transfers(group), "waits", times)

    def _kernel(self, op: Compute, times: int) -> None:
        name = f"{op.kernel} %{op.views()[0].buffer.name}"
        cycles, steps = self._timing.kernel_of(op)
        least, _ = self._bound.kernel_of(op)
        row = self._add(op, name, "computes", times)
        row.each = {"cycles": cycles, "steps": steps, "bound": least}

    def _add(
        self, what: Op | Block, name: str, kind: Literal["computes", "waits"], times: int
    ) -> OpCycles:
        row = self._found.setdefault(name, OpCycles(name, kind))
        row.times += times
        row.cycles += self._timing.spent[id(what)]
        row.bound += self._bound.spent[id(what)]
        return row


def _inside(block: Block, timing: Timing) -> str:
    """What a loop or a sweep is called: after the first transfers that it waits for."""
    for op in block.walk():
        if isinstance(op, (Send, Recv, Relay)):
            return _transfers(timing.transfers.of_token[op.result])
    return "loops"


def _transfers(group: Group) -> str:
    """What moves, and over which channels."""
    moved = (
        f"%{op.views()[0].buffer.name} over @{channel_out(op) or channel_in(op)}"
        for op in group.starts
    )
    return ", ".join(dict.fromkeys(moved))
