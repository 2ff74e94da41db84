"""The closed collective and tally libraries, as a model: right data, time by formula.

Every PE of a row or column calls the same operations in the same order. An operation takes place
when all have called; its duration follows a pipelined chain (see docs/sim.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshc.sim.machine.parts import AnyMachine, AnyPe


@dataclass
class Call:
    """One PE's part in an operation."""

    pe: AnyPe
    kind: str
    root: int
    send: int
    receive: int
    count: int
    task: int


@dataclass
class Line:
    """The calls of one row or column that wait for the others."""

    queues: dict[int, list[Call]] = field(default_factory=dict)


class Collectives:
    """Pending collective operations of a machine."""

    def __init__(self, machine: AnyMachine) -> None:
        self.machine = machine
        self.lines: dict[tuple[int, int], Line] = {}
        self.tallies: dict[str, int] = {}
        self.transforms: list[tuple[AnyPe, int]] = []
        self.signals = 0
        self.total = 0

    def call(
        self, pe: AnyPe, dim: int, kind: str, root: int, send: int, receive: int, count: int,
        task: int,
    ) -> None:  # fmt: skip
        """``pe`` joins the next operation of its row (dim 0) or column (dim 1)."""
        key = (dim, pe.y if dim == 0 else pe.x)
        position = pe.x if dim == 0 else pe.y
        size = self.machine.program.width if dim == 0 else self.machine.program.height
        line = self.lines.setdefault(key, Line())
        call = Call(pe, kind, root, send, receive, count, task)
        line.queues.setdefault(position, []).append(call)
        if len(line.queues) == size and all(line.queues.values()):
            calls = [line.queues[i].pop(0) for i in range(size)]
            start = max(c.pe.t for c in calls)
            self.machine.at(max(start, self.machine.now), self._run, calls)

    def _run(self, time: int, calls: list[Call]) -> None:
        first = calls[0]
        if any((c.kind, c.root, c.count) != (first.kind, first.root, first.count) for c in calls):
            self.machine.fault(first.pe, "", "the PEs of a line call different collectives")
        n, size, root = first.count, len(calls), first.root
        words = [_words(c.pe, c.send, n * (size if c.kind == "scatter" and i == root else 1))
                 for i, c in enumerate(calls)]  # fmt: skip
        ramp = self.machine.costs.ramp
        volume = n
        if first.kind == "broadcast":
            for call in calls:
                _words(call.pe, call.send, n)[:] = words[root]
        elif first.kind == "scatter":
            volume = n * size
            whole = words[root].copy()
            for i, call in enumerate(calls):
                _words(call.pe, call.receive, n)[:] = whole[i * n : (i + 1) * n]
        elif first.kind == "gather":
            volume = n * size
            _words(calls[root].pe, calls[root].receive, n * size)[:] = np.concatenate(words)
        else:
            _words(calls[root].pe, calls[root].receive, n)[:] = _sum(words, root)
        cost = (
            volume + (2 * ramp + 2) * size if first.kind == "reduce" else volume + size + 2 * ramp
        )
        for call in calls:
            call.pe.activate_later(call.task, time + cost)

    # --- tally ---

    def signal(self, pe: AnyPe, amount: int, done: int, addr: int, task: int, goal: int) -> None:
        """Add to the tally; when all PEs are through and the goal is met the corner is told."""
        program = self.machine.program
        self.total += amount
        self.signals += done
        corner = self.machine.pes[program.width - 1, 0]
        if self.signals >= program.width * program.height and self.total >= goal:
            self.signals = -(1 << 60)
            delay = program.width + program.height
            corner.mem[addr : addr + 4] = int(self.total if goal else 0).to_bytes(4, "little")
            corner.activate_later(task, pe.t + delay)


def _words(pe: AnyPe, addr: int, count: int) -> Any:
    return np.ndarray((count,), np.uint32, pe.mem, addr)


def _sum(words: list[Any], root: int) -> Any:
    """The f32 sum along the chain that ends at the root: far ends first, from both sides."""
    floats = [w.view(np.float32) for w in words]
    total = floats[root].copy()
    for side in (floats[:root], floats[root + 1 :][::-1]):
        if side:
            part = side[0].copy()
            for other in side[1:]:
                part = other + part
            total = total + part
    return total.view(np.uint32)
