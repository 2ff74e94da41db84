"""The machine: all PEs, the event queue, time, and faults."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from meshc.sim.machine.channel import Credit
from meshc.sim.machine.collectives import Collectives
from meshc.sim.machine.costs import costs_of
from meshc.sim.machine.explain import explain_hang
from meshc.sim.machine.fabric import Fabric
from meshc.sim.machine.hostside import HostSide
from meshc.sim.machine.operation import Operation
from meshc.sim.machine.options import Options
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.runtime import bind_functions, launch_sync, route_colors
from meshc.sim.machine.trace import Trace
from meshc.sim.numbers import from_bits
from meshc.sim.program import PeProgram, Program
from meshc.sim.pygen.expressions import machine_type
from meshc.sim.pygen.module import GeneratedModule, generate
from meshc.support.diagnostics import MeshcError, fail

Event = tuple[int, int, Callable[..., None], Any]

_NOTHING = object()


class Machine(HostSide):
    """Runs a program. ``now`` is the time of the event being handled."""

    def __init__(self, program: Program, options: Options | None = None) -> None:
        self.program = program
        self.options = options or Options()
        self.costs = costs_of(program.arch)
        self.now = 0
        self.last_time = 0
        self.tasks_run = 0
        self.events = 0
        self.task_limit = 2_000_000_000
        self._heap: list[Event] = []
        self._number = 0
        self.pes: dict[tuple[int, int], Pe] = {}
        self.fabric = Fabric(self)
        self._types: dict[tuple[int, str], list[Any]] = {}
        self.trace = Trace() if self.options.trace_file else None
        self.print_log: list[str] = []
        self.remarks: dict[tuple[str, str], str] = {}
        self.host_credits: dict[tuple[int, int, int], Credit] = {}
        self.collectives = Collectives(self)
        self.modules = [generate(c) for c in program.classes]
        self._build()

    def _build(self) -> None:
        program = self.program
        for (x, y), number in sorted(program.tiles.items(), key=lambda i: (i[0][1], i[0][0])):
            self.pes[x, y] = self._make_pe(program.classes[number], self.modules[number], x, y)
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

    def _make_pe(self, code: PeProgram, module: GeneratedModule, x: int, y: int) -> Pe:
        pe = Pe(self, code, x, y)
        bind_functions(pe, module)
        return pe

    def _initial_state(self, pe: Pe) -> None:
        for kind, number in pe.program.blocked:
            pe.close(kind, number)
        for kind, number in pe.program.unblocked:
            pe.open(kind, number, 0)
        for kind, number in pe.program.activated:
            if kind in ("local", "color"):
                pe.activate_now(0, number)

    # --- events ---

    def at(self, time: int, action: Callable[..., None], argument: Any = _NOTHING) -> None:
        """Call ``action(time)`` or ``action(time, argument)`` at ``time``."""
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, action, argument))

    def note(self, time: int) -> None:
        """Something reaches the host at ``time``."""
        self.last_time = max(self.last_time, time)

    def run_until(self, goal: Callable[[], bool]) -> bool:
        """Handle events until ``goal`` holds; False when nothing is left to do before."""
        heap = self._heap
        with np.errstate(all="ignore"):
            while not goal():
                if not heap:
                    return False
                self.step()
        return True

    def run_to_rest(self) -> None:
        """Handle events until none is left."""
        with np.errstate(all="ignore"):
            while self._heap:
                self.step()

    def step(self) -> None:
        """Handle one event."""
        time, _, action, argument = heapq.heappop(self._heap)
        self.now = time
        self.events += 1
        if time > self.last_time:
            self.last_time = time
        try:
            if argument is _NOTHING:
                action(time)
            else:
                action(time, argument)
        except (ZeroDivisionError, IndexError, ValueError, TypeError, OverflowError) as problem:
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

    def fault(self, pe: Pe | None, place: str, message: str) -> NoReturn:
        """Stop with a message about a PE. Raises MeshcError ``csl-run``."""
        notes = []
        if pe is not None:
            notes.append(f"PE ({pe.x}, {pe.y}) of '{pe.program.name}', cycle {max(pe.t, self.now)}")
            if pe.current_name:
                notes.append(f"in '{pe.current_name.rsplit('_', 1)[0]}'")
        if place:
            notes.append(f"at {place}")
        fail("csl-run", message, notes=notes)

    def check_bounds(self, pe: Pe, low: int, high: int) -> None:
        """Remark once per variable when an operand reaches past the variable it starts in."""
        program = pe.program
        position = bisect_right(program.starts, low) - 1
        if position < 0:
            return
        symbol = program.symbols[program.order[position]]
        end = symbol.addr + symbol.size
        if symbol.addr <= low < end < high:
            self.remark(
                "csl-bounds", f"{program.name} {symbol.name}",
                f"an operand in '{pe.current_name.rsplit('_', 1)[0]}' of '{program.name}' reaches "
                f"{high - end} bytes past the end of '{symbol.name}' (PE ({pe.x}, {pe.y}))",
            )  # fmt: skip

    def remark(self, code: str, subject: str, words: str) -> None:
        """Something odd that does not stop the run, reported once per subject."""
        self.remarks.setdefault((code, subject), words)

    def hang(self, goal: str) -> MeshcError:
        """The explanation of why nothing moves any more."""
        return explain_hang(self, goal)

    def start_operation(
        self, pe: Pe, name: str, operands: tuple[Any, ...], place: str
    ) -> Operation:
        """Start a synchronous operation for ``@map``."""
        return launch_sync(pe, name, operands, None, place, None, None, None)

    # --- arguments of tasks ---

    def parameters(self, program: PeProgram, name: str) -> list[Any]:
        """The parameter types of a function."""
        key = (id(program), name)
        if key not in self._types:
            function = next(f for f in program.functions if f.name == name)
            self._types[key] = [machine_type(p.type) for p in function.params]
        return self._types[key]

    def split(self, program: PeProgram, name: str, word: int) -> tuple[Any, ...]:
        """A 32-bit payload as the arguments of a data task, low half first."""
        kinds = self.parameters(program, name)
        if len(kinds) == 1:
            return (from_bits(kinds[0], word),)
        return (from_bits(kinds[0], word & 0xFFFF), from_bits(kinds[1], word >> 16))

    def arguments(self, program: PeProgram, name: str, values: list[int]) -> tuple[Any, ...]:
        """Raw words of a launch as arguments."""
        kinds = self.parameters(program, name)
        return tuple(from_bits(k, v) for k, v in zip(kinds, values, strict=False))

    @property
    def cycles(self) -> int:
        """Simulated cycles so far."""
        return max(self.last_time, self.now)
