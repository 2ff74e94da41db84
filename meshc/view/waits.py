"""Who waits for whom: what ends a wait, and which ops on other cores bring that about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.ops.tile import Recv, Relay, Send, Wait, channel_in, channel_out
from meshc.ir.printer import op_lines
from meshc.ir.values import Value

_VERBS = {Send: "send", Recv: "receive", Relay: "pass on"}


def waits(module: Module) -> list[dict[str, Any]]:
    """Each wait of a tile-level module with the transfers that it is for, and for those that
    receive the lines that send to them; each phase of a task-level one with the phases that give
    what it needs."""
    return _of_phases(module) if module.level == "task" else _of_transfers(module)


def _of_transfers(module: Module) -> list[dict[str, Any]]:
    lines = {op: line for line, op in op_lines(module)}
    makers: dict[Value, Op] = {value: op for op in lines for value in op.results}
    beside = {op: id(block) for block in _blocks(module) for op in block.ops}
    senders: dict[str, list[Op]] = {}
    for op in lines:
        if (name := channel_out(op)) is not None:
            senders.setdefault(name, []).append(op)

    def partners(made: Op, name: str) -> list[int]:
        """Lines of the ops that send what ``made`` receives: those beside it, if there are any."""
        every = senders.get(name, [])
        near = [op for op in every if beside[op] == beside[made] and op.views() == made.views()]
        near = near or [op for op in every if beside[op] == beside[made]]
        return [lines[op] for op in near or every]

    found = []
    for op, line in lines.items():
        if not isinstance(op, Wait):
            continue
        ends = []
        for token in op.tensors():
            made = makers[token]
            name = channel_in(made)
            ends.append(
                {
                    "verb": _VERBS.get(type(made), made.NAME),
                    "channel": name or channel_out(made) or "",
                    "buffer": made.views()[0].buffer.name if made.views() else "",
                    "line": lines[made],
                    "from": partners(made, name) if name is not None else [],
                    "when": "" if made.when is None else str(made.when),
                }
            )
        found.append({"line": line, "when": "" if op.when is None else str(op.when), "ends": ends})
    return found


def _blocks(module: Module) -> Iterator[Block]:
    """The blocks of a module, those inside of ops included."""
    for block in module.blocks():
        yield block
        yield from (region for op in block.walk() for region in op.regions)


def _of_phases(module: Module) -> list[dict[str, Any]]:
    """Phases in order; a phase needs what an earlier one, or in a loop any, has given."""
    givers: dict[Value, list[tuple[str, int]]] = {}
    phases = [(line, op) for line, op in op_lines(module) if isinstance(op, task.Phase)]
    for line, phase in phases:
        for op in phase.regions[0].walk():
            if isinstance(op, task.Give):
                givers.setdefault(op.view.buffer, []).append((phase.name, line))
    found = []
    for line, phase in phases:
        ends = []
        needed = [op for op in phase.regions[0].walk() if isinstance(op, task.Need)]
        for buffer in dict.fromkeys(view.buffer for op in needed for view in op.views()):
            for name, giver in dict.fromkeys(givers.get(buffer, [])):
                ends.append(
                    {
                        "verb": "need",
                        "channel": name,
                        "buffer": buffer.name,
                        "line": giver,
                        "from": [giver],
                        "when": "",
                    }
                )
        found.append({"line": line, "when": phase.name, "ends": ends})
    return found
