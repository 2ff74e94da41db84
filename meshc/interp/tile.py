"""Runs tile-level modules core by core.

Every core has a program counter of its own and only FIFO channels join them: no step is done for
many cores at once, so a wrong order of transfers shows, under some schedule and some timing of the
transfers, as a deadlock or as other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from meshc.interp.deadlock import report_deadlock
from meshc.interp.fifos import Fabric, Posted, Route, Timing, route_of
from meshc.interp.places import coordinate_functions, core_coordinates, core_text
from meshc.interp.port_memory import Machine, Rounds
from meshc.interp.resolve import Names
from meshc.interp.schedules import Schedule, make_schedule
from meshc.interp.steps import Compiler, Core
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

MAX_STEPS = 200_000_000


class TileMachine(Machine):
    """The cores of one tile-level module with their memory.

    ``transfers`` is ``early`` or ``late`` (see :mod:`meshc.interp.fifos`), ``schedule`` one of
    :mod:`meshc.interp.schedules`.
    """

    def __init__(
        self, module: Module, transfers: Timing = "early", schedule: str = "round-robin"
    ) -> None:
        make_schedule(schedule)
        super().__init__(module, module.the_mesh())
        self.transfers, self.schedule = transfers, schedule
        self._functions = coordinate_functions(self.mesh)
        scalars = module.scalars.keys() - self._rounds.keys()
        names = Names(frozenset(core_coordinates(self.mesh)) | scalars, self._functions)
        channels = frozenset(c.name for c in module.channels)
        self._body = Compiler(self._slots, channels).body(module.program.body, names)

    def _execute(self, scalars: Mapping[str, int], rounds: Rounds) -> None:
        schedule = make_schedule(self.schedule)
        fabric = Fabric(self._routes(scalars), self.transfers, self._waker(schedule))
        self._cores = self._make_cores(fabric, scalars, rounds)
        scripts = [core.run(self._body) for core in self._cores]
        for core in self._cores:
            schedule.add(core.index)
        ended = self._advance(schedule, scripts)
        if len(ended) < len(self._cores):
            report_deadlock(self._cores, ended, fabric)
        self._check_consumed(fabric)
        self._cores = []  # a cycle would keep the memory of all cores alive

    def _advance(self, schedule: Schedule, scripts: list[Iterator[None]]) -> set[int]:
        """Give turns until no core is ready; the cores that have ended."""
        ended: set[int] = set()
        steps = 0
        while schedule.ready:
            index = schedule.take()
            core, script = self._cores[index], scripts[index]
            for _ in range(schedule.burst()):
                steps += 1
                if next(script, _END) is _END:
                    ended.add(index)
                    break
                if core.waits_for is not None:
                    break
            else:
                schedule.add(index)
            if steps > MAX_STEPS:
                fail("interp-limit", f"the program takes more than {MAX_STEPS} steps")
        return ended

    def _waker(self, schedule: Schedule) -> Callable[[Posted], None]:
        def wake(posted: Posted) -> None:
            core = self._cores[posted.core]
            if core.waits_for is posted:
                core.waits_for = None
                schedule.add(core.index)

        return wake

    def _routes(self, scalars: Mapping[str, int]) -> dict[str, Route]:
        return {
            c.name: route_of(c, self.mesh, scalars, self._functions) for c in self.module.channels
        }

    def _make_cores(self, fabric: Fabric, scalars: Mapping[str, int], rounds: Rounds) -> list[Core]:
        coordinates = core_coordinates(self.mesh)
        return [
            Core(
                index,
                core_text(self.mesh, index),
                {**{n: int(v[index]) for n, v in coordinates.items()}, **scalars},
                rounds,
                [memory[index] for memory in self._memory],
                fabric,
            )
            for index in range(self.mesh.cores)
        ]

    def _check_consumed(self, fabric: Fabric) -> None:
        left = fabric.unconsumed()
        if left:
            _unconsumed([f"{n} on @{c} at {self._cores[core].name}" for c, core, n in left])


_END = object()


def _unconsumed(where: list[str]) -> NoReturn:
    fail(
        "interp-unconsumed",
        "the program ends with messages that nobody has received",
        notes=where[:8],
        help="give every send a recv on the core its channel leads to",
    )
