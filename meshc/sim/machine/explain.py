"""Explains a hang: who waits, for what, and which wavelets are stuck on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshc.sim.descriptors import FabIn, Fifo
from meshc.sim.routes import DIRECTION_NAMES
from meshc.support.diagnostics import Diagnostic, MeshcError

if TYPE_CHECKING:
    from meshc.sim.machine.machine import Machine
    from meshc.sim.machine.operation import Operation
    from meshc.sim.machine.pe import Pe

_MOST = 12


def explain_hang(machine: Machine, goal: str) -> MeshcError:
    """The error ``csl-hang`` for a machine in which no event is left."""
    notes: list[str] = []
    for pe in machine.pes.values():
        notes += _waiting(pe)
    for (x, y, color), port, count in machine.fabric.stuck():
        notes.append(_stuck(machine, x, y, color, port, count))
    left = len(notes) - _MOST
    if left > 0:
        notes = [*notes[:_MOST], f"and {left} more"]
    if not notes:
        notes = ["no task is ready and no operation waits: a task was never activated"]
    message = f"the program hangs at cycle {machine.cycles}: {goal}"
    return MeshcError([Diagnostic("error", "csl-hang", message, None, tuple(notes))])


def _waiting(pe: Pe) -> list[str]:
    notes = []
    where = f"PE ({pe.x}, {pe.y})"
    seen = set()
    for channel in pe.channels.values():
        for operation in channel.waiting:
            if id(operation) in seen:
                continue
            seen.add(id(operation))
            notes.append(f"{where} waits {_operation(pe, operation)}")
        if channel.bursts and not channel.waiting:
            reason = "is blocked" if channel.blocked else "has no task"
            notes.append(
                f"{where} holds {channel.pending()} wavelets of color {channel.color}, which {reason}"
            )
    for state in pe.fifos:
        for operation in (*state.readers, *state.writers):
            if id(operation) not in seen:
                seen.add(id(operation))
                notes.append(f"{where} waits {_operation(pe, operation)}")
    for number in pe.activated:
        if number in pe.blocked:
            name = pe.local_tasks.get(number, "?").rsplit("_", 1)[0]
            notes.append(f"{where}: task '{name}' (id {number}) is activated but blocked")
    return notes


def _operation(pe: Pe, operation: Operation) -> str:
    """One waiting operation in words."""
    got = f"{operation.done_count} of {operation.n if operation.n < 1 << 40 else 'endless'}"
    sources = []
    for source in operation.srcs:
        if isinstance(source, FabIn):
            sources.append(f"color {pe.channel_of(source).color}")
        elif isinstance(source, Fifo):
            sources.append("a FIFO")
    how = "synchronously" if operation.resume else "asynchronously"
    if not sources:
        sources.append("room in a FIFO")
    return f"{how} in @{operation.name} at {operation.place} for {' and '.join(sources)} ({got})"


def _stuck(machine: Machine, x: int, y: int, color: int, port: int, count: int) -> str:
    router = machine.fabric.routers[x, y, color]
    if router.teardown:
        why = "the color is being torn down there"
    else:
        names = ", ".join(DIRECTION_NAMES[d] for d in router.rx()) or "nothing"
        why = f"the router accepts {names} (switch position {router.position})"
    source = DIRECTION_NAMES[port]
    return f"{count} wavelets of color {color} from {source} are stuck at PE ({x}, {y}): {why}"
