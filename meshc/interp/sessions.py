"""Sessions: modules of any level that keep their state from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshc.interp.fifos import Timing
from meshc.interp.graph import run_graph
from meshc.interp.inputs import Scalars, wanted_inputs
from meshc.interp.mesh import run_mesh
from meshc.interp.named import Array
from meshc.interp.port_memory import Machine
from meshc.interp.state import State
from meshc.interp.task_orders import Order
from meshc.interp.tasks import TaskMachine
from meshc.interp.tile import TileMachine
from meshc.ir.batch import BATCH, REQUEST, requests_of
from meshc.ir.core import Op, Operand
from meshc.ir.module import MACHINE_LEVELS, Function, Module
from meshc.ir.ops import graph, mesh
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

Arrays = Mapping[str, Array]


class Session:
    """A module of any level with the state it keeps from step to step (KV caches).

    A phase that reads one request at a time (:mod:`meshc.ir.batch`) keeps a state for each; those
    of all requests, side by side in the dim B, are what it leaves to the phase that follows.
    ``transfers`` and ``schedule`` matter at tile level only (see :mod:`meshc.interp.tile`),
    ``order`` at task level (:mod:`meshc.interp.tasks`).
    """

    def __init__(
        self,
        module: Module,
        constant: Arrays,
        transfers: Timing = "early",
        schedule: str = "round-robin",
        order: Order | None = None,
    ) -> None:
        self.module = module
        self._constant = dict(constant) if module.level not in MACHINE_LEVELS else {}
        self._states: dict[int, dict[str, Array]] = {}
        self._machine: Machine | None = None
        if module.level == "tile":
            self._machine = TileMachine(module, transfers, schedule)
        elif module.level == "task":
            self._machine = TaskMachine(module, order)
        if self._machine is not None:
            self._load(constant)

    def step(self, inputs: Arrays, scalars: Scalars) -> list[Array]:
        """The results that are no state, in order."""
        if self._machine is not None:
            self._load(inputs)
            return list(self._machine.run(scalars).values())
        run = run_graph if self.module.level == "graph" else run_mesh
        request = scalars.get(REQUEST, 0)
        held = self._states.get(request, {}) if isinstance(request, int) else {}
        results = run(self.module, {**self._constant, **held, **inputs}, scalars)
        states = state_results(self.module.function)
        if isinstance(request, int):
            now = {name: results[index] for name, index in states.items()}
            self._states[request] = {**held, **now}
        return [r for i, r in enumerate(results) if i not in states.values()]

    def adopt_state(self, other: Session) -> None:
        """Continue with the state that ``other`` (the prefill of the same model) has left."""
        self.adopt(other.left())

    def left(self) -> State:
        """The state, for a session of the phase that follows."""
        if self._machine is not None:
            return self._machine.left()
        kinds = {w.name: w.type for w in wanted_inputs(self.module) if w.role == "state"}
        kept = {}
        for name, kind in kinds.items():
            given = [self._states.get(r, {}) for r in range(self._apart)]
            arrays = [{**self._constant, **held}.get(name) for held in given]
            if any(array is not None for array in arrays):
                kept[name] = kind, self._side_by_side(name, kind, arrays)
        return State(self.module.mesh, kept)

    def adopt(self, state: State) -> None:
        """Continue with ``state``, which was left by a module of the same level: each core with
        the lanes that it holds. Raises ``interp-state`` where these are others over there."""
        if self._machine is not None:
            self._machine.adopt(state)
            return
        for want in wanted_inputs(self.module):
            if want.role == "state":
                array = state.handed_over(want.name, want.type, self.module.mesh, self.module.dims)
                for request, part in enumerate(np.split(array, self._apart, self._axis(want.type))):
                    self._states.setdefault(request, {})[want.name] = part

    @property
    def _apart(self) -> int:
        """The number of requests whose states are kept separately."""
        return requests_of(self.module) if REQUEST in self.module.scalars else 1

    def _axis(self, kind: TensorType) -> int:
        """Where the requests are in a state of type ``kind``."""
        return kind.dims.index(BATCH) if BATCH in kind.dims else 0

    def _side_by_side(self, name: str, kind: TensorType, arrays: list[Array | None]) -> Array:
        """The state ``name`` of all requests; of those that were not run it is zeros."""
        empty = np.zeros(kind.shape(self.module.dims))
        if len(arrays) > 1 and BATCH not in kind.dims:
            fail("interp-state", f"'{name}' has no dim {BATCH} for the state of several requests")
        whole = [empty if array is None else array for array in arrays]
        return np.concatenate(whole, self._axis(kind)) if len(whole) > 1 else whole[0]

    def _load(self, arrays: Arrays) -> None:
        assert self._machine is not None
        for want in wanted_inputs(self.module):
            if want.name in arrays and want.role != "state":
                self._machine.load(want.name, arrays[want.name])


def state_results(function: Function) -> dict[str, int]:
    """For each state parameter by name, which result of the function is its next value."""
    states = {p.value for p in function.params if p.role == "state"}
    producers = _producers(function)
    found = {}
    for index, value in enumerate(function.body.ops[-1].tensors()):
        origin = _origin(value, producers)
        if origin in states:
            found[origin.name] = index
    return found


@dataclass
class _Producers:
    """Which op gives a value, and which loop a block argument belongs to."""

    results: dict[Value, Op] = field(default_factory=dict)
    arguments: dict[Value, Op] = field(default_factory=dict)


def _producers(function: Function) -> _Producers:
    known = _Producers()
    for op in function.body.walk():
        known.results.update(dict.fromkeys(op.results, op))
        for region in op.regions:
            known.arguments.update(dict.fromkeys(region.args, op))
    return known


def _origin(value: Value, known: _Producers) -> Value:
    """The value that ``value`` continues: through appends, and through loops over layers."""
    seen: set[Value] = set()
    while value not in seen:
        seen.add(value)
        following = _continued(value, known)
        value = following if isinstance(following, Value) else value
    return value


def _continued(value: Value, known: _Producers) -> Operand:
    loop = known.arguments.get(value)
    if loop is not None:
        return loop.operands[loop.regions[0].args.index(value)]
    op = known.results.get(value)
    if isinstance(op, graph.Append):
        return op.operands[0]
    if isinstance(op, mesh.Append):
        return op.operands[2 * op.results.index(value)]
    if isinstance(op, (graph.Repeat, graph.Fuse)):
        return op.regions[0].ops[-1].operands[op.results.index(value)]
    return value
