"""The state of the C machine in the Python machine's terms, for explanations and reports.

The numbers come from runtime/inspect.c, in its order.
"""

from __future__ import annotations

import ctypes as ct
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from meshc.sim.cgen.c_pe import CPe
from meshc.sim.cgen.structs import QUEUES
from meshc.sim.cgen.vectors import OP_NUMBERS
from meshc.sim.descriptors import FabIn, FabOut, Fifo, Mem
from meshc.sim.machine.channel import Burst, Channel, Credit, FifoState, Waiter
from meshc.sim.machine.hangs import explain_endless, explain_hang
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.router import Router
from meshc.sim.machine.run_options import Options
from meshc.sim.machine.vector_operation import Operation
from meshc.sim.program import Program
from meshc.sim.route_configs import ColorConfig
from meshc.support.diagnostics import MeshcError

Key = tuple[int, int, int]
_OPERATIONS = list(OP_NUMBERS)
_PORTS = 5


class Inspected(Protocol):
    """What is asked of a machine in C."""

    @property
    def program(self) -> Program: ...
    @property
    def options(self) -> Options: ...
    @property
    def now(self) -> int: ...
    @property
    def cycles(self) -> int: ...
    @property
    def remarks(self) -> dict[tuple[str, str], str]: ...
    @property
    def pes(self) -> dict[tuple[int, int], CPe]: ...
    @property
    def by_number(self) -> list[CPe]: ...
    @property
    def fabric(self) -> CFabric: ...


class CFabric:
    """Routers and links of the C machine."""

    def __init__(self, machine: Inspected) -> None:
        self.machine = machine

    @cached_property
    def configs(self) -> dict[Key, ColorConfig]:
        """The route of each color at each PE before anything ran."""
        found = dict(self.machine.program.routes)
        for pe in self.machine.by_number:
            found |= {(pe.x, pe.y, c): of for c, of in pe.program.color_configs.items()}
        return found

    @property
    def routers(self) -> dict[Key, Router]:
        """All routers in their present state."""
        found = {key: Router(config) for key, config in self.configs.items()}
        for pe in self.machine.by_number:
            for color, router in _routers(pe, self.configs)[0].items():
                found[pe.x, pe.y, color] = router
        return found

    @property
    def link_load(self) -> dict[Key, int]:
        """Wavelets over each link: (x, y, direction)."""
        return {
            (pe.x, pe.y, out): load
            for pe in self.machine.by_number
            for out, load in enumerate(_routers(pe, self.configs)[1])
            if load
        }


class _Fabric:
    """What an explanation asks of a fabric."""

    def __init__(self, fabric: CFabric) -> None:
        self.routers = fabric.routers

    def stuck(self) -> list[tuple[Key, int, int]]:
        """Bursts that wait in routers: (where, port, wavelets)."""
        return [
            (key, port, sum(b.left() for b in queue))
            for key, router in sorted(self.routers.items())
            for port, queue in enumerate(router.ports)
            if queue
        ]


class _Pe:
    """What an explanation asks of a PE."""

    channel, channel_of, input_color = Pe.channel, Pe.channel_of, Pe.input_color

    def __init__(self, pe: CPe) -> None:
        self.machine, self.program = pe.machine, pe.program
        self.local_tasks = pe.program.local_tasks
        self.credits: dict[int, Credit] = {}
        self.channels: dict[int, Channel] = {}
        self._operations: dict[int, Operation] = {}
        numbers = iter(_numbers(pe, "csl_inspect_pe"))
        for _ in range(next(numbers)):
            self._channel(pe, numbers)
        self.fifos = [self._fifo(pe, numbers) for _ in range(next(numbers))]
        active = [(next(numbers), next(numbers)) for _ in range(next(numbers))]
        self.activated = {n if n >= 0 else (29, -1 - n): since for n, since in active}
        self.in_queues = {queue: next(numbers) for queue in range(QUEUES)}
        for _ in range(next(numbers)):
            self._credit(pe, numbers)
        blocked = next(numbers)
        self.blocked = {n for n in range(64) if blocked >> n & 1}
        self.waiting_on = self._operation(pe, numbers) if next(numbers) else None
        self.current_name = pe.current_name
        local, control, colors = (next(numbers) for _ in range(3))
        self.ran = _chosen(local, pe.program.local_tasks)
        self.ran |= _chosen(control, pe.program.control_tasks)
        self.ran |= _chosen(colors, {c: str(of.task) for c, of in self.channels.items()})

    def _channel(self, pe: CPe, numbers: Iterator[int]) -> None:
        channel = Channel(next(numbers))
        channel.blocked = bool(next(numbers))
        channel.task = pe.names[next(numbers)] or None
        channel.bursts = _bursts(numbers)
        channel.waiting = self._queue(pe, numbers)
        self.channels[channel.color] = channel

    def _credit(self, pe: CPe, numbers: Iterator[int]) -> None:
        credit = self.credits[next(numbers)] = Credit()
        credit.outstanding, credit.room = next(numbers), next(numbers)
        credit.held, credit.stalled = self._queue(pe, numbers), self._queue(pe, numbers)

    def _fifo(self, pe: CPe, numbers: Iterator[int]) -> FifoState:
        state = FifoState(next(numbers))
        state.data = np.zeros(next(numbers), np.uint32)
        state.readers, state.writers = self._queue(pe, numbers), self._queue(pe, numbers)
        return state

    def _queue(self, pe: CPe, numbers: Iterator[int]) -> deque[Waiter]:
        return deque(self._operation(pe, numbers) for _ in range(next(numbers)))

    def _operation(self, pe: CPe, numbers: Iterator[int]) -> Operation:
        operation = self._operations.setdefault(next(numbers), Operation.__new__(Operation))
        operation.name = _OPERATIONS[next(numbers)]
        operation.place = pe.machine.place(pe, next(numbers))
        operation.done_count, operation.n = next(numbers), next(numbers)
        operation.resume, operation.is_async = bool(next(numbers)), bool(next(numbers))
        operation.done, operation.t = bool(next(numbers)), next(numbers)
        operands = [_operand(numbers) for _ in range(1 + next(numbers))]
        operation.dst, operation.srcs = operands[0], operands[1:]
        return operation


class _Machine:
    """What an explanation asks of a machine."""

    def __init__(self, machine: Inspected) -> None:
        self.cycles, self.options = machine.cycles, machine.options
        self.now = machine.now
        self.remarks = machine.remarks
        self.fabric = _Fabric(machine.fabric)
        self.pes = {at: _Pe(pe) for at, pe in machine.pes.items()}


def explain(machine: Inspected, goal: str) -> MeshcError:
    """The error ``csl-hang`` for a machine in which no event is left."""
    return explain_hang(_Machine(machine), goal)  # type: ignore[arg-type]


def explain_running(machine: Inspected) -> MeshcError:
    """The error ``csl-endless`` for a machine that goes on and on."""
    return explain_endless(_Machine(machine))  # type: ignore[arg-type]


def _numbers(pe: CPe, function: str) -> list[int]:
    call = getattr(pe.machine.library, function)
    room = call(pe.address, None, 0)
    items = (ct.c_int64 * room)()
    call(pe.address, items, room)
    return list(items)


def _operand(numbers: Iterator[int]) -> Any:
    kind, number, queue = next(numbers), next(numbers), next(numbers)
    match kind:
        case 1:
            return Mem(0, 1, 0, 0)
        case 2:
            return FabIn(number, 1, queue)
        case 3:
            return FabOut(number, 1, queue)
        case 4:
            return Fifo(number, 0, 0, 0)
    return None


def _bursts(numbers: Iterator[int]) -> deque[Burst]:
    found = deque[Burst]()
    for _ in range(next(numbers)):
        control, t0, period, left, first = (next(numbers) for _ in range(5))
        words = np.zeros(left, np.uint32)
        words[:1] = first
        found.append(Burst(words, t0, period, bool(control)))
    return found


def _chosen(mask: int, names: dict[int, str]) -> set[str]:
    """The names whose numbers are set in a mask."""
    return {name for number, name in names.items() if mask >> number & 1}


def _directions(numbers: Iterator[int]) -> tuple[int, ...]:
    return tuple(next(numbers) for _ in range(next(numbers)))


def _routers(pe: CPe, configs: dict[Key, ColorConfig]) -> tuple[dict[int, Router], list[int]]:
    """The routers of a PE by color, and the wavelets over its links by direction."""
    numbers = iter(_numbers(pe, "csl_inspect_routers"))
    found: dict[int, Router] = {}
    while (color := next(numbers)) >= 0:
        router = Router(configs.get((pe.x, pe.y, color), ColorConfig()))
        router.position, ring, router.pop = next(numbers), next(numbers), next(numbers)
        router.ring, router.teardown = bool(ring), bool(next(numbers))
        router.masks = (_directions(numbers), _directions(numbers))
        router.positions = [_position(numbers) for _ in range(3)]
        router.ports = [_bursts(numbers) for _ in range(_PORTS)]
        found[color] = router
    return found, [next(numbers) for _ in range(_PORTS)]


def _position(numbers: Iterator[int]) -> Any:
    present, has_rx, has_tx = next(numbers), next(numbers), next(numbers)
    rx, tx = _directions(numbers), _directions(numbers)
    return (rx if has_rx else None, tx if has_tx else None) if present else None
