"""The machine in C, with the interface of the Python machine towards hosts and reports."""

from __future__ import annotations

import ctypes as ct
import os
import struct
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

from meshc.sim.cgen import structs
from meshc.sim.cgen.build import CODE, QUICK, program_library
from meshc.sim.cgen.c_pe import CPe
from meshc.sim.cgen.emit import emit
from meshc.sim.cgen.expressions import member
from meshc.sim.cgen.library import KNOWN_OPERATIONS, library
from meshc.sim.cgen.memory import memories
from meshc.sim.cgen.pe_classes import CodeClass, options_of, prepare
from meshc.sim.cgen.snapshot import CFabric, explain, explain_running
from meshc.sim.cgen.structs import Value
from meshc.sim.cgen.vectors import BANKS, OP_NUMBERS
from meshc.sim.descriptors import Fifo
from meshc.sim.grids import Routes
from meshc.sim.machine.channel import Credit
from meshc.sim.machine.collective_library import Collectives
from meshc.sim.machine.common import Common
from meshc.sim.machine.cycle_model import costs_of
from meshc.sim.machine.mathematics import CYCLES
from meshc.sim.machine.run_options import Options
from meshc.sim.machine.runtime import RUNTIME, route_colors
from meshc.sim.program import Program
from meshc.sim.route_configs import DIRECTION_NAMES
from meshc.sim.scalar_costs import scalar_costs
from meshc.sim.sema import csl_types as ty
from meshc.sim.timing import DEFAULT
from meshc.support.diagnostics import MeshcError, fail

Key = tuple[int, int, int]
MOST_THREADS = 256
_FEW_PES = 64  # whose code hardly runs for as long as it takes to compile
_GATES = {"local": 0, "color": 1, "queue": 2, "control": 3}
_NOW, _LAST_TIME, _TASKS, _EVENTS, _FAULT, _FAULT_PE, _FAULT_PLACE, _MISSING, _DETAILS = range(9)
_SET_LAST_TIME, _SET_DYNAMIC, _SET_TASK_LIMIT, _SET_FAILED = 1, 2, 3, 4
_SET_TRACING, _SET_REPORT, _SET_MOVE16, _SET_MOVE32, _SET_STRICT, _SET_DEADLINE = 5, 6, 7, 8, 9, 10
_SET_WORTH, _PARTS = 11, 12
_REST, _UNBLOCKED, _TIME, _RECEIVED, _SENT = range(5)
_COLLISION, _PYTHON = 2, 3
_PAUSED, _OVERDUE = 2, 3
_EVENTS_PER_CALL = 4_000_000
_NOTHING = object()


class CMachine(Common):
    """Runs a program in C. Raises Unsupported or BuildError when the program cannot be."""

    def __init__(self, program: Program, options: Options | None = None) -> None:
        self.program = program
        self.options = options or Options()
        self.costs = costs_of(program.arch, self.options.timing or DEFAULT)
        self.types: dict[tuple[int, str], list[Any]] = {}
        self.trace = self.options.trace()
        self.print_log: list[str] = []
        self.remarks: dict[tuple[str, str], str] = {}
        self.collectives = Collectives(self)
        self.library = library(list(self.costs.lanes))
        self.classes = self._compile(program)
        self.pes: dict[tuple[int, int], CPe] = {}
        self.by_number: list[CPe] = []
        self.streams: dict[Key, int] = {}
        self.fabric = CFabric(self)
        self._events: dict[int, tuple[Callable[..., None], Any]] = {}
        self._token = 0
        self._problem: BaseException | None = None
        self._callbacks = self._make_callbacks()
        costs = structs.costs_struct(self.costs, list(CYCLES.values()))
        self.handle = self.library.csl_machine_new(
            program.width, program.height, len(program.tiles), ct.byref(costs),
            ct.byref(self._callbacks), self._threads(),
        )  # fmt: skip
        self._end = weakref.finalize(self, self.library.csl_machine_end, self.handle)
        self._build()

    def _compile(self, program: Program) -> list[CodeClass]:
        found: dict[int, CodeClass] = {}
        classes, pes = program.classes, Counter(program.tiles.values())
        scalar = scalar_costs(program.arch, self.options.timing or DEFAULT)
        groups = emit(classes, scalar, KNOWN_OPERATIONS)
        running = [sum(pes[member.number] for member in group.members) for group in groups]
        toolchains = [CODE if count > _FEW_PES else QUICK for count in running]
        wanted = [(group.text, chain) for group, chain in zip(groups, toolchains, strict=True)]
        once = list(dict.fromkeys(wanted))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            libraries = dict(zip(once, pool.map(lambda w: program_library(*w), once), strict=True))
        for group, key in zip(groups, wanted, strict=True):
            code = libraries[key]
            for entry in group.members:
                found[entry.number] = prepare(classes[entry.number], group, entry, code)
        return [found[number] for number in range(len(classes))]

    def _threads(self) -> int:
        """Threads that run the machine: one where Python has to see all in the order of time."""
        options = self.options
        in_order = options.strict, self.trace, options.fabric_file
        calls = any(code.group.calls.entries for code in self.classes)
        return 1 if calls or any(in_order) else min(options.threads or 1, MOST_THREADS)

    # --- building, in the order of the Python machine ---

    def _build(self) -> None:
        program, call = self.program, self.library
        for which, value in (
            (_SET_TRACING, self.trace is not None),
            (_SET_REPORT, bool(self.options.fabric_file)),
            (_SET_STRICT, self.options.strict_queues),
            (_SET_TASK_LIMIT, self.options.max_cycles),
            (_SET_MOVE16, OP_NUMBERS["mov16"]),
            (_SET_MOVE32, OP_NUMBERS["mov32"]),
        ):
            call.csl_set_number(self.handle, which, int(value))
        tiles = sorted(program.tiles.items(), key=lambda i: (i[0][1], i[0][0]))
        blocks = memories(self.classes[kind].program.end for _, kind in tiles)
        for number, (((x, y), kind), memory) in enumerate(zip(tiles, blocks, strict=True)):
            self._make_pe(number, x, y, self.classes[kind], memory)
        self._configure(program.routes)
        local = [{c: structs.route_of(r) for c, r in of.color_configs.items()}
                 for of in program.classes]  # fmt: skip
        for at, pe in self.pes.items():
            for color, route in local[program.tiles[at]].items():
                self._check(call.csl_configure(pe.address, color, ct.byref(route)))
            for color, port in pe.program.ports.items():
                if port == "d2h":
                    self.streams[(*at, color)] = call.csl_sink(pe.address, color)
        for link in program.links:
            (x, y, color), (tx, ty_, there) = link.source, link.target
            call.csl_connect(self.pes[x, y].address, color, link.exit, self.pes[tx, ty_].address,
                             there, link.entry, link.hops)  # fmt: skip
        for (x, y, color), direction, is_input in program.ports:
            stream = call.csl_open_port(self.pes[x, y].address, color, direction, is_input)
            if not is_input:
                self.streams[x, y, color] = stream
        dynamic = {c for pe_class in program.classes for c in route_colors(pe_class)}
        call.csl_set_number(self.handle, _SET_DYNAMIC, sum(1 << c for c in dynamic))
        for pe in self.by_number:
            self._initial_state(pe)
        call.csl_machine_ready(self.handle)

    def _make_pe(self, number: int, x: int, y: int, code: CodeClass, memory: Any) -> None:
        call, program = self.library, code.program
        address = call.csl_pe_new(
            self.handle, number, x, y, ct.byref(code.shared), code.functions,
            ct.byref(code.constants), code.slots, len(program.slots), memory, len(memory),
        )  # fmt: skip
        pe = CPe(self, program, number, address, code.names, memory)
        for at, data in program.image:
            pe.mem[at : at + len(data)] = data
        self.pes[x, y] = pe
        self.by_number.append(pe)
        self._check(call.csl_bind_data_tasks(address))
        for load in program.dsr_loads:
            dsd = structs.dsd_of(load.dsd.value)  # type: ignore[attr-defined]
            self._check(call.csl_initial_load(
                address, BANKS[load.bank], load.number.value,  # type: ignore[attr-defined]
                ct.byref(dsd), load.save_address, load.options.is_async,
                ct.byref(options_of(load.options)),
            ))  # fmt: skip
        for fifo in (*program.slots, *code.dsds):
            if isinstance(fifo, Fifo):
                call.csl_fifo_capacity(address, fifo.number, fifo.capacity)

    def _configure(self, routes: Routes) -> None:
        made = (structs.Route * max(1, len(routes.configs)))(*map(structs.route_of, routes.configs))
        for color, grid in routes.numbers.items():
            numbers = np.ascontiguousarray(grid, np.int32)
            height, width = numbers.shape
            self._check(self.library.csl_configure_all(
                self.handle, color, numbers.ctypes.data, width, height, made
            ))  # fmt: skip

    def _initial_state(self, pe: CPe) -> None:
        call = self.library
        for word, value in pe.program.settings:
            self._check(call.csl_initial_setting(pe.address, word, value))
        for kind, number in pe.program.blocked:
            self._check(call.csl_initial_gate(pe.address, 0, _GATES[kind], number))
        for kind, number in pe.program.unblocked:
            self._check(call.csl_initial_gate(pe.address, 1, _GATES[kind], number))
        for kind, number in pe.program.activated:
            if kind in ("local", "color"):
                self._check(call.csl_initial_activate(pe.address, number))

    # --- calls from C ---

    def _make_callbacks(self) -> structs.Callbacks:
        """The callbacks hold the machine weakly, so that it ends when nobody uses it."""
        me = weakref.ref(self)

        def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                machine = me()
                assert machine is not None
                try:
                    return action(machine, *args)
                except BaseException as problem:  # must not cross C; raised again after it
                    machine._problem = problem
                    machine.library.csl_set_number(machine.handle, _SET_FAILED, 1)
                    return 0

            return call

        return structs.Callbacks(
            structs.CallFunction(guarded(CMachine._call_python)),
            structs.EventFunction(guarded(CMachine._event)),
            structs.BoundsFunction(guarded(CMachine._bounds)),
            structs.MicrothreadFunction(guarded(CMachine._microthread)),
            structs.EdgeFunction(guarded(CMachine._edge)),
            structs.WrapFunction(guarded(CMachine._wrap)),
            structs.TraceFunction(guarded(CMachine._trace)),
        )

    def _call_python(self, number: int, function: int, args: Any) -> int:
        """A function of the runtime that exists in Python only; the bits of its result."""
        pe = self.by_number[number]
        name, kind, params, result = self._class_of(pe).group.calls.entries[function]
        values = [value_of(p, args[i]) for i, p in enumerate(params)]
        told = (kind,) if kind else ()
        return bits_of(result, getattr(RUNTIME, name)(pe, *told, *values))

    def _class_of(self, pe: CPe) -> CodeClass:
        return self.classes[self.program.tiles[pe.x, pe.y]]

    def _event(self, token: int, time: int) -> None:
        action, argument = self._events.pop(token)
        if argument is _NOTHING:
            action(time)
        else:
            action(time, argument)

    def _bounds(self, number: int, low: int, high: int) -> None:
        self.check_bounds(self.by_number[number], low, high)

    def _microthread(self, number: int, place: int, other: int, thread: int) -> None:
        pe = self.by_number[number]
        here, there = self.place(pe, place), self.place(pe, other)
        self.remark(
            "csl-microthread", f"{here} {there}",
            f"the operation at {here} starts on microthread {thread} while the one at "
            f"{there} is still running there (PE ({pe.x}, {pe.y}))",
        )  # fmt: skip

    def _edge(self, number: int, color: int, out: int) -> None:
        pe = self.by_number[number]
        self.remark_edge(pe.x, pe.y, color, out)

    def _wrap(self, number: int, address: int, place: int) -> None:
        pe = self.by_number[number]
        self.remark_wrap(pe, address, self.place(pe, place))

    def _trace(
        self, number: int, op: int, place: int, moves: int, waited: int, start: int, end: int
    ) -> None:
        pe = self.by_number[number]
        assert self.trace is not None
        if op < 0:
            self.trace.add("task", pe.names[place].rsplit("_", 1)[0], pe.x, pe.y, start, end)
        else:
            name = f"@{list(OP_NUMBERS)[op]} {self.place(pe, place)}"
            self.trace.operation(name, pe.x, pe.y, bool(moves), (waited, start, end))

    def place(self, pe: CPe, number: int) -> str:
        """The source place that code of a PE knows by ``number``."""
        return self._class_of(pe).group.places.names[number]

    # --- running ---

    def at(self, time: int, action: Callable[..., None], argument: Any = _NOTHING) -> None:
        """Call ``action(time)`` or ``action(time, argument)`` at ``time``."""
        self._token += 1
        self._events[self._token] = action, argument
        self.library.csl_at_python(self.handle, time, self._token)

    def _run(self, goal: int, amount: int = 0, streams: list[int] | None = None) -> bool:
        """Handle events until a goal is reached; False when nothing is left to do before."""
        listed = (ct.c_void_p * len(streams or []))(*(streams or []))
        self.library.csl_goal(self.handle, goal, amount, listed, len(listed))
        self.library.csl_set_number(self.handle, _SET_DEADLINE, self.now + self.options.max_cycles)
        how = _PAUSED
        while how == _PAUSED:
            how = self.library.csl_run(self.handle, _EVENTS_PER_CALL)
            self._check(how)
            if how == _OVERDUE:
                raise explain_running(self)
            if self.watch is not None:
                self.watch(self.now)
        return bool(how)

    def run_to_rest(self) -> None:
        """Handle events until none is left."""
        self._run(_REST)

    def run_for(self, cycles: int) -> None:
        """Let time pass, in which free running code goes on."""
        self._run(_TIME, self.now + cycles)

    def run_until_unblocked(self, wanted: int) -> bool:
        """Run until every PE has unblocked the command stream ``wanted`` times."""
        return self._run(_UNBLOCKED, wanted)

    def run_until_received(self, keys: list[Key], count: int) -> Key | None:
        """Run until each stream holds ``count`` wavelets; else a stream that lacks some."""
        if self._run(_RECEIVED, count, [self.streams[key] for key in keys]):
            return None
        return keys[self._number(_MISSING) - 1]

    def run_until_sent(self, keys: list[Key]) -> tuple[Key, Credit] | None:
        """Run until the queues hold what the host has sent; else a stream that is stuck."""
        found = {key: self._host_credit(key) for key in keys}
        credits = {key: at for key, at in found.items() if at}
        self._run(_SENT, 0, list(credits.values()))
        for key, at in credits.items():
            known = structs.CCredit.from_address(at)
            if known.outstanding > known.room:
                credit = Credit(known.room)
                credit.outstanding = known.outstanding
                return key, credit
        return None

    def _host_credit(self, key: Key) -> int | None:
        x, y, color = key
        address: int | None = self.library.csl_host_credit(self.pes[x, y].address, color)
        return address

    def _check(self, result: int) -> None:
        """Raise what ended a call of the machine. Raises MeshcError."""
        if result >= 0:
            return
        if self._number(_FAULT) == _PYTHON:
            self._raise_problem()
        pe = self.by_number[self._number(_FAULT_PE)]
        if self._number(_FAULT) == _COLLISION:
            self._collision(pe)
        message = self.library.csl_message(self.handle).decode()
        self.fault(pe, self.place(pe, self._number(_FAULT_PLACE)), message)

    def _raise_problem(self) -> NoReturn:
        problem, self._problem = self._problem, None
        assert problem is not None
        self.library.csl_set_number(self.handle, _SET_FAILED, 0)
        if isinstance(problem, ValueError | TypeError | ZeroDivisionError | OverflowError):
            self.fault(None, "", f"internal error of the simulator: {problem!r}")
        raise problem

    def _collision(self, pe: CPe) -> NoReturn:
        color, other, port = (self._number(_DETAILS + i) for i in range(3))
        fail(
            "csl-collision",
            f"two wavelets of color {color} arrive at PE ({pe.x}, {pe.y}) in the same cycle, "
            f"from {DIRECTION_NAMES[other]} and from {DIRECTION_NAMES[port]}",
            notes=[f"cycle {self.now}"],
            help="let only one neighbour send at a time, or use two colors",
        )

    def hang(self, goal: str) -> MeshcError:
        """The explanation of why nothing moves any more."""
        return explain(self, goal)

    # --- the host's side ---

    def launch(self, pe: CPe, name: str, values: tuple[Any, ...]) -> None:
        """Start a function on a PE now."""
        params = self.parameters(pe.program, name)
        args = (Value * max(1, len(params)))()
        for i, (kind, value) in enumerate(zip(params, values, strict=True)):
            setattr(args[i], member(kind), value)
        self.library.csl_launch(pe.address, pe.names.index(name), args)

    def streams_to_host(self, key: Key) -> bool:
        """Whether a PE sends a color to the host."""
        return key in self.streams

    def collected(self, key: Key) -> int:
        """The number of wavelets a stream holds."""
        return int(self.library.csl_stream_total(self.streams[key]))

    def take(self, key: Key, count: int) -> Any:
        """The first ``count`` wavelets of a stream; the others stay."""
        count = min(count, self.collected(key))
        out = np.zeros(count, np.uint32)
        self.library.csl_stream_take(self.streams[key], count, _words(out))
        return out

    def enter(self, key: Key, words: Any) -> None:
        """The host sends words into a port of a layout."""
        x, y, color = key
        data = np.ascontiguousarray(words, np.uint32)
        self.library.csl_enter(self.pes[x, y].address, color, _words(data), len(data))

    def inject_stream(self, key: Key, words: Any) -> None:
        """The host sends words to the RAMP of a PE."""
        x, y, color = key
        data = np.ascontiguousarray(words, np.uint32)
        call = self.library.csl_inject_stream
        self._check(call(self.pes[x, y].address, color, _words(data), len(data)))

    # --- numbers ---

    def _number(self, which: int) -> int:
        return int(self.library.csl_number(self.handle, which))

    @property
    def now(self) -> int:  # type: ignore[override]
        """The time of the event being handled."""
        return self._number(_NOW)

    @property
    def last_time(self) -> int:  # type: ignore[override]
        """The latest time at which anything happened."""
        return self._number(_LAST_TIME)

    @property
    def tasks_run(self) -> int:
        """Tasks started so far."""
        return self._number(_TASKS)

    @property
    def events(self) -> int:
        """Events handled so far."""
        return self._number(_EVENTS)

    @property
    def threads(self) -> int:
        """Threads that run the machine when it has enough to do."""
        return self._number(_PARTS)

    def share_cycles_of(self, nanoseconds: int) -> None:
        """All threads share the cycles that take so long in the mean of the latest."""
        self.library.csl_set_number(self.handle, _SET_WORTH, nanoseconds)

    @property
    def task_limit(self) -> int:
        """Cycles after which a task is taken to run for ever."""
        return 0

    @task_limit.setter
    def task_limit(self, cycles: int) -> None:
        self.library.csl_set_number(self.handle, _SET_TASK_LIMIT, cycles)


def _words(array: Any) -> Any:
    return array.ctypes.data_as(ct.POINTER(ct.c_uint32))


def value_of(kind: ty.Type, cell: Any) -> Any:
    """A scalar that C passes, as Python's functions of the machine expect it."""
    value = getattr(cell, member(kind))
    return bool(value) if kind == ty.BOOL else value


def bits_of(kind: ty.Type, value: Any) -> int:
    """A result of a Python function as the bits of ``union value``."""
    if kind == ty.VOID or value is None:
        return 0
    if isinstance(kind, ty.Float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return ((int(value) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
