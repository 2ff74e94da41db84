"""Runs tile-level modules core by core.

Every core has a program counter of its own and only FIFO channels join them: no step is done for
many cores at once, so a wrong order of transfers shows, under some schedule and some timing of the
transfers, as a deadlock or as other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import numpy as np

from meshc.interp.deadlock import report_deadlock
from meshc.interp.fabric import Fabric, Posted, Route, Timing, route_of
from meshc.interp.inputs import Scalars, checked_scalars
from meshc.interp.named import Array
from meshc.interp.places import coordinate_functions, core_coordinates, core_text
from meshc.interp.ports import PortMap
from meshc.interp.resolve import Names
from meshc.interp.rounding import storage
from meshc.interp.schedules import Schedule, make_schedule
from meshc.interp.state import State
from meshc.interp.steps import Compiler, Core
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

MAX_BYTES = 16 * 2**30
MAX_STEPS = 200_000_000
_KEPT = ("weight", "state")


class TileMachine:
    """The cores of one tile-level module with their memory.

    ``transfers`` is ``early`` or ``late`` (see :mod:`meshc.interp.fabric`), ``schedule`` one of
    :mod:`meshc.interp.schedules`. Memory starts as NaN (``i32``: 0), so that what is read before it
    is set shows in the results. Lanes of a loaded buffer that no port fills are 0. ``state``
    buffers start as zeros and keep what they hold from run to run. In-ports that are named like
    the module's constants are loaded with them.
    """

    def __init__(
        self, module: Module, transfers: Timing = "early", schedule: str = "round-robin"
    ) -> None:
        self.module = module
        self.mesh = module.the_mesh()
        self.transfers, self.schedule = transfers, schedule
        make_schedule(schedule)
        self._check_size()
        loaded = {p.buffer for p in module.ports if p.direction == "in"}
        self._unset = [_unset_value(b, b.value in loaded) for b in module.buffers]
        self._memory = [
            np.full((self.mesh.cores, *b.type.shape), unset, storage(b.type.dtype))
            for b, unset in zip(module.buffers, self._unset, strict=True)
        ]
        self._slots = {b.value: slot for slot, b in enumerate(module.buffers)}
        # A constant that two products use is packed into a buffer for each: ports share a name.
        self._ports: dict[str, list[PortMap]] = {}
        for port in module.ports:
            self._ports.setdefault(port.name, []).append(PortMap(port, self.mesh))
        self._functions = coordinate_functions(self.mesh)
        self._rounds = scalars_of_rounds(module)
        scalars = module.scalars.keys() - self._rounds.keys()
        names = Names(frozenset(core_coordinates(self.mesh)) | scalars, self._functions)
        channels = frozenset(c.name for c in module.channels)
        self._body = Compiler(self._slots, channels).body(module.program.body, names)
        self._loaded: dict[str, Array] = {}
        self._spread_once: set[str] = set()
        self._extents = dict(module.dims)
        for name, values in module.constants.items():
            if name in self._ports:
                self.load(name, np.array(values))

    # --- data

    def load(self, name: str, array: Array) -> None:
        """Give the in-port ``name`` its logical tensor.

        An array of an ``in`` buffer may have fewer rows than its dim and is spread again before
        each run; others are spread once. Raises ``interp-input``.
        """
        port, *_ = self._ports.get(name, [None])
        if port is None or port.port.direction != "in":
            fail("interp-input", f"the program has no in-port '{name}'")
        shape = np.shape(array)
        full = port.port.tensor.shape(self.module.dims)
        may_be_short = not self._kept(name) and len(shape) == len(full)
        least = tuple(map(min, shape, full)) if may_be_short else full
        if shape != least:
            fail("interp-input", f"'{name}' has shape {list(shape)}, not {list(full)}")
        if may_be_short:
            self._extents.update(zip(port.port.tensor.dims, shape, strict=True))
        self._loaded[name] = np.asarray(array)
        if self._kept(name) and not self._uses_scalars(name):
            self._spread_one(name, {})

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the ``state`` buffers by name, each ``[cores, *extents]``."""
        return {
            b.value.name: memory.copy()
            for b, memory in zip(self.module.buffers, self._memory, strict=True)
            if b.role == "state"
        }

    def left(self) -> State:
        """A copy of the state, for the phase that follows."""
        types = {b.value.name: b.type for b in self.module.buffers}
        return State(self.mesh, {n: (types[n], array) for n, array in self.state.items()})

    def adopt_state(self, other: TileMachine) -> None:
        """Continue with the state that ``other`` (say, the prefill) has left; see ``adopt``."""
        self.adopt(other.left())

    def adopt(self, state: State) -> None:
        """Continue with ``state``.

        Raises ``interp-state`` when a buffer is missing there or has another type or mesh.
        """
        for buffer, memory in zip(self.module.buffers, self._memory, strict=True):
            if buffer.role != "state":
                continue
            found = state.kept.get(buffer.value.name)
            if found is None or found[0] != buffer.type or state.mesh != self.mesh:
                fail("interp-state", f"%{buffer.value.name} : {buffer.type} is no state over there")
            memory[...] = found[1]
            # What a state port would load has been replaced.
            self._spread_once.update(
                name
                for name, ports in self._ports.items()
                if any(p.port.buffer is buffer.value for p in ports)
            )

    # --- running

    def run(self, scalars: Scalars | None = None) -> dict[str, Array]:
        """Run the program once on every core; the logical tensors of the out-ports by name.

        Of a scalar that rounds of a loop have of their own, one number stands for as many.

        Raises ``interp-deadlock``, ``interp-unconsumed``, ``interp-partner``, ``interp-shape``,
        ``interp-view``, ``interp-uninitialised``, ``interp-port``, ``interp-limit``.
        """
        values: dict[str, int] = {}
        rounds: dict[str, tuple[int, ...]] = {}
        for name, value in checked_scalars(self.module, scalars or {}).items():
            several = value if isinstance(value, tuple) else (value,) * self._rounds.get(name, 1)
            if name in self._rounds:
                rounds[name] = several
            else:
                (values[name],) = several
        self._reset()
        with np.errstate(all="ignore"):
            self._spread(values)
            self._execute(values, rounds)
        return {
            name: port.collect(
                self._memory[self._slots[port.port.buffer]],
                port.port.tensor.shape(self._extents),
                values,
            )
            for name, (port, *_) in self._ports.items()
            if port.port.direction == "out"
        }

    def _check_size(self) -> None:
        total = self.mesh.cores * sum(b.type.bytes for b in self.module.buffers)
        if total > MAX_BYTES:
            fail("interp-limit", f"all cores together have {total} bytes; at most {MAX_BYTES} run")

    def _kept(self, name: str) -> bool:
        """Whether the buffer of a port keeps its contents between runs."""
        return self.module.buffers[self._slots[self._ports[name][0].port.buffer]].role in _KEPT

    def _reset(self) -> None:
        """Forget scratch memory, so that nothing depends on an earlier run."""
        for slot, buffer in enumerate(self.module.buffers):
            if buffer.role not in _KEPT:
                self._memory[slot][...] = self._unset[slot]

    def _spread(self, scalars: Mapping[str, int]) -> None:
        for name, ports in self._ports.items():
            if name in self._loaded:
                self._spread_one(name, scalars)
            elif ports[0].port.direction == "in" and name not in self._spread_once:
                fail("interp-input", f"the in-port '{name}' has not been loaded")

    def _spread_one(self, name: str, scalars: Mapping[str, int]) -> None:
        for port in self._ports[name]:
            memory = self._memory[self._slots[port.port.buffer]]
            port.spread(self._loaded[name], memory, scalars)
        if self._kept(name):
            del self._loaded[name]
            self._spread_once.add(name)

    def _uses_scalars(self, name: str) -> bool:
        """Whether which elements lie where depends on the run."""
        return any(port.names & {*self.module.scalars} for port in self._ports[name])

    def _execute(self, scalars: Mapping[str, int], rounds: Mapping[str, tuple[int, ...]]) -> None:
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

    def _make_cores(
        self, fabric: Fabric, scalars: Mapping[str, int], rounds: Mapping[str, tuple[int, ...]]
    ) -> list[Core]:
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


def _unset_value(buffer: Buffer, loaded: bool) -> float:
    """What memory holds before anything is stored there."""
    known = loaded or buffer.role == "state" or buffer.type.dtype is DType.I32
    return 0.0 if known else np.nan
