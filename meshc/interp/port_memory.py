"""Memory of a module at the tile or the task level, filled and read through its ports."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshc.interp.inputs import Scalars, checked_scalars
from meshc.interp.named import Array
from meshc.interp.ports import PortMap
from meshc.interp.rounding import storage
from meshc.interp.state import State
from meshc.ir.mesh import Mesh
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

MAX_BYTES = 16 * 2**30
_KEPT = ("weight", "state")

Rounds = Mapping[str, tuple[int, ...]]
"""The scalars of which a run is given several, and which these are."""


class Machine:
    """The buffers of one module on the cores of ``mesh``; subclasses say what runs on them.

    Memory starts as NaN (``i32``: 0), so that what is read before it is set shows in the results.
    Lanes of a loaded buffer that no port fills are 0. ``state`` buffers start as zeros and keep
    what they hold from run to run. In-ports that are named like the module's constants are loaded
    with them.
    """

    def __init__(self, module: Module, mesh: Mesh) -> None:
        self.module, self.mesh = module, mesh
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
        self._rounds = scalars_of_rounds(module)
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

    def adopt_state(self, other: Machine) -> None:
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
        """Run the program once; the logical tensors of the out-ports by name.

        Of a scalar that rounds of a loop have of their own, one number stands for as many.

        Raises ``interp-deadlock``, ``interp-unconsumed``, ``interp-partner``, ``interp-shape``,
        ``interp-view``, ``interp-uninitialised``, ``interp-port``, ``interp-limit``.
        """
        values, rounds = self.begin(scalars or {})
        with np.errstate(all="ignore"):
            self._execute(values, rounds)
        return self.results(values)

    def begin(self, scalars: Scalars) -> tuple[dict[str, int], Rounds]:
        """Make memory ready for a run; the scalars of all rounds and of each."""
        values: dict[str, int] = {}
        rounds: dict[str, tuple[int, ...]] = {}
        for name, value in checked_scalars(self.module, scalars).items():
            several = value if isinstance(value, tuple) else (value,) * self._rounds.get(name, 1)
            if name in self._rounds:
                rounds[name] = several
            else:
                (values[name],) = several
        self._reset()
        with np.errstate(all="ignore"):
            self._spread(values)
        return values, rounds

    def results(self, values: Mapping[str, int]) -> dict[str, Array]:
        """The logical tensors of the out-ports by name."""
        return {
            name: port.collect(
                self._memory[self._slots[port.port.buffer]],
                port.port.tensor.shape(self._extents),
                values,
            )
            for name, (port, *_) in self._ports.items()
            if port.port.direction == "out"
        }

    def _execute(self, scalars: Mapping[str, int], rounds: Rounds) -> None:
        """Run the program on the memory as it is."""
        raise NotImplementedError

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


def _unset_value(buffer: Buffer, loaded: bool) -> float:
    """What memory holds before anything is stored there."""
    known = loaded or buffer.role == "state" or buffer.type.dtype is DType.I32
    return 0.0 if known else np.nan
