"""The machine: all PEs, the event queue, time, and faults.

Events of one cycle are handled PE by PE in the order of their numbers, row by row, and those of
nobody last. At a PE they come in the order of the cycles in which they were put into the queue,
within a cycle by the PE that put them there, and then as it did. What a PE does reaches others a
cycle later at the earliest, so that the order of the PEs changes nothing; it is there to be the
same in both back ends and with any number of threads. The host looks at the machine between cycles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from meshc.sim.machine import config_registers
from meshc.sim.machine.channel import Credit
from meshc.sim.machine.collective_library import Collectives
from meshc.sim.machine.common import Common
from meshc.sim.machine.cycle_model import costs_of
from meshc.sim.machine.fabric import Fabric
from meshc.sim.machine.hangs import explain_endless
from meshc.sim.machine.hostside import HostSide
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.run_options import Options
from meshc.sim.machine.runtime import bind_functions, launch_sync, route_colors
from meshc.sim.machine.vector_operation import Operation
from meshc.sim.program import PeProgram, Program
from meshc.sim.pygen.python_modules import GeneratedModule, generate
from meshc.sim.scalar_costs import scalar_costs
from meshc.sim.timing import DEFAULT

Event = tuple[int, int, int, int, int, Callable[..., None], tuple[Any, ...]]

_NOBODY = 1 << 22  # a number above that of every PE: events of the host and of the fabric
# What generated code can raise; the last three only when the file of the program was changed.
_TRANSLATED = (ZeroDivisionError, IndexError, ValueError, TypeError, OverflowError, NameError,
               KeyError, AttributeError)  # fmt: skip
_WATCH_MASK = 0xFFF


class Machine(HostSide, Common):
    """Runs a program. ``now`` is the time of the event being handled."""

    def __init__(self, program: Program, options: Options | None = None) -> None:
        self.program = program
        self.options = options or Options()
        self.costs = costs_of(program.arch, self.options.timing or DEFAULT)
        self.now = 0
        self.last_time = 0
        self.tasks_run = 0
        self.events = 0
        self.task_limit = self.options.max_cycles
        self._heap: list[Event] = []
        self._number = 0
        self._acting = _NOBODY
        self.pes: dict[tuple[int, int], Pe] = {}
        self.fabric = Fabric(self)
        self.types = {}
        self.trace = self.options.trace()
        self.print_log: list[str] = []
        self.remarks: dict[tuple[str, str], str] = {}
        self.host_credits: dict[tuple[int, int, int], Credit] = {}
        self.collectives = Collectives(self)
        scalar = scalar_costs(program.arch, self.options.timing or DEFAULT)
        self.modules = [generate(c, scalar) for c in program.classes]
        self._build()

    def _build(self) -> None:
        program = self.program
        tiles = sorted(program.tiles.items(), key=lambda i: (i[0][1], i[0][0]))
        for number, ((x, y), of) in enumerate(tiles):
            code, module = program.classes[of], self.modules[of]
            self.pes[x, y] = self._make_pe(code, module, number, x, y)
        for key, config in program.routes.items():
            self.fabric.configure(key, config)
        for (x, y), pe in self.pes.items():
            for color, config in pe.program.color_configs.items():
                self.fabric.configure((x, y, color), config)
            for color, kind in pe.program.ports.items():
                if kind == "d2h":
                    self.fabric.sinks[x, y, color] = []
        for link in program.links:
            self.fabric.connect(link.source, link.exit, link.target, link.entry, link.hops)
        for key, direction, is_input in program.ports:
            self.fabric.open_port(key, direction, is_input)
        for pe_class in program.classes:
            self.fabric.dynamic |= route_colors(pe_class)
        for pe in self.pes.values():
            self._initial_state(pe)
        self.fabric.settle()

    def _make_pe(self, code: PeProgram, module: GeneratedModule, number: int, x: int, y: int) -> Pe:
        pe = Pe(self, code, number, x, y)
        bind_functions(pe, module)
        return pe

    def _initial_state(self, pe: Pe) -> None:
        for word, value in pe.program.settings:
            config_registers.initial_setting(pe, word, value)
        for kind, number in pe.program.blocked:
            pe.close(kind, number)
        for kind, number in pe.program.unblocked:
            pe.open(kind, number, 0)
        for kind, number in pe.program.activated:
            if kind in ("local", "color"):
                pe.activate_now(0, number)

    # --- events ---

    def at(self, time: int, action: Callable[..., None], *argument: Any) -> None:
        """Call ``action`` with ``time`` and ``argument`` at that time, as an event of no PE."""
        self.put(_NOBODY, time, action, argument)

    def put(
        self, owner: int, time: int, action: Callable[..., None], argument: tuple[Any, ...]
    ) -> None:
        """Add an event; ``owner`` is the number of the PE whose state changes."""
        self._number += 1
        key = time, owner, self.now, self._acting, self._number
        heapq.heappush(self._heap, (*key, action, argument))

    def note(self, time: int) -> None:
        """Something reaches the host at ``time``."""
        self.last_time = max(self.last_time, time)

    def run_until(self, goal: Callable[[], bool]) -> bool:
        """Handle the events of whole cycles until ``goal`` holds; False when nothing is left.

        Raises MeshcError ``csl-endless`` when it takes more cycles than the options allow.
        """
        deadline = self.now + self.options.max_cycles
        try:
            with np.errstate(all="ignore"):
                while not goal():
                    if not self._heap:
                        return False
                    if self._heap[0][0] > deadline:
                        raise explain_endless(self)
                    self._cycle(self._heap[0][0])
        finally:
            self._acting = _NOBODY
        return True

    def _cycle(self, time: int) -> None:
        """Handle all events of a cycle."""
        while self._heap and self._heap[0][0] == time:
            self.step()
        self._acting = _NOBODY
        self.fabric.settle_credits()
        self.fabric.settle()

    def run_to_rest(self) -> None:
        """Handle events until none is left."""
        self.run_until(lambda: False)

    def step(self) -> None:
        """Handle one event."""
        time, self._acting, _, _, _, action, argument = heapq.heappop(self._heap)
        self.now = time
        self.events += 1
        if time > self.last_time:
            self.last_time = time
        if self.watch is not None and not self.events & _WATCH_MASK:
            self.watch(time)
        try:
            action(time, *argument)
        except _TRANSLATED as problem:
            self._translate(problem, action)

    def _translate(self, problem: Exception, action: Callable[..., None]) -> NoReturn:
        """A Python error inside generated code becomes a message about the CSL source."""
        place, trace = "", problem.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            for module in self.modules:
                if module.file_name == name:
                    place = module.places[trace.tb_lineno - 1]
            trace = trace.tb_next
        owner = getattr(action, "__self__", None)
        words = {
            ZeroDivisionError: "division by zero",
            IndexError: "a memory access outside of the variables",
        }.get(type(problem), str(problem))
        if not place:
            words = f"internal error of the simulator: {problem!r}"
        pe = owner if isinstance(owner, Pe) else getattr(owner, "pe", None)
        self.fault(pe, place, words)

    def start_operation(
        self, pe: Pe, name: str, operands: tuple[Any, ...], place: str
    ) -> Operation:
        """Start a synchronous operation for ``@map``."""
        return launch_sync(pe, name, operands, None, place, None, None, None)
