"""Runs modules of any level on the same random inputs: what ``--check`` does around each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from meshc.interp.bounds import Comparison, compare, reduction_length
from meshc.interp.fabric import Timing
from meshc.interp.graph import run_graph
from meshc.interp.inputs import random_inputs, wanted_inputs
from meshc.interp.mesh import run_mesh
from meshc.interp.named import Array
from meshc.interp.tile import TileMachine
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.module import Function, Module
from meshc.ir.ops import graph, mesh
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

Arrays = Mapping[str, Array]

__all__ = [
    "Comparison",
    "Session",
    "Trace",
    "check_same",
    "compare",
    "random_trace",
    "reduction_length",
    "run_any",
    "run_trace",
    "state_results",
]


@dataclass(frozen=True)
class Trace:
    """Inputs of several steps of one phase: what stays, and arrays and scalars of each step.

    All arrays are the model's own tensors by name. A trace made for a graph-level module runs on
    what it is lowered to, too: the rows that the host looks up in embedding tables are there.
    """

    constant: Arrays
    steps: tuple[tuple[Arrays, Mapping[str, int]], ...]


class Session:
    """A module of any level with the state it keeps from step to step (KV caches).

    ``transfers`` and ``schedule`` matter at tile level only (see :mod:`meshc.interp.tile`).
    """

    def __init__(
        self,
        module: Module,
        constant: Arrays,
        transfers: Timing = "early",
        schedule: str = "round-robin",
    ) -> None:
        self.module = module
        self._constant = dict(constant)
        self._machine = TileMachine(module, transfers, schedule) if module.level == "tile" else None
        if self._machine is not None:
            self._load(constant)

    def step(self, inputs: Arrays, scalars: Mapping[str, int]) -> list[Array]:
        """The results that are no state, in order."""
        if self._machine is not None:
            self._load(inputs)
            return list(self._machine.run(scalars).values())
        run = run_graph if self.module.level == "graph" else run_mesh
        results = run(self.module, {**self._constant, **inputs}, scalars)
        states = state_results(self.module.function)
        self._constant.update({name: results[index] for name, index in states.items()})
        return [r for i, r in enumerate(results) if i not in states.values()]

    def adopt_state(self, other: Session) -> None:
        """Continue with the state that ``other`` (the prefill of the same model) has left."""
        if self._machine is not None and other._machine is not None:
            self._machine.adopt_state(other._machine)
            return
        names = [w.name for w in wanted_inputs(self.module) if w.role == "state"]
        for name in names:
            if name not in other._constant:
                fail("interp-state", f"the other phase has no state '{name}'")
            self._constant[name] = other._constant[name]

    def _load(self, arrays: Arrays) -> None:
        assert self._machine is not None
        for want in wanted_inputs(self.module):
            if want.name in arrays and want.role != "state":
                self._machine.load(want.name, arrays[want.name])


def run_any(module: Module, inputs: Arrays, scalars: Mapping[str, int]) -> list[Array]:
    """One step from an empty state: the results that are no state, in order.

    Graph and mesh level are computed in float64, the tile level as its buffers say.
    """
    return Session(module, inputs).step(inputs, scalars)


def run_trace(
    module: Module, trace: Trace, transfers: Timing = "early", schedule: str = "round-robin"
) -> list[Array]:
    """The results of all steps, one after the other, state carried from step to step."""
    session = Session(module, trace.constant, transfers, schedule)
    return [array for inputs, scalars in trace.steps for array in session.step(inputs, scalars)]


def random_trace(module: Module, seed: int, steps: int = 3) -> Trace:
    """Random inputs: ``steps`` steps with ``pos`` counting up from its least value, or one step.

    Other run-time scalars take the middle of their range.
    """
    scalars = {name: (low + high + 1) // 2 for name, (low, high) in module.scalars.items()}
    roles = {want.name: want.role for want in wanted_inputs(module)}
    first = random_inputs(module, seed, scalars)
    constant = {name: array for name, array in first.items() if roles[name] != "in"}
    made = []
    for number, pos in enumerate(_positions(module, steps)):
        at = {**scalars, "pos": pos} if "pos" in scalars else scalars
        arrays = random_inputs(module, seed + number, at)
        given = {name: array for name, array in arrays.items() if roles[name] == "in"}
        made.append(({**given, **_embedded(module, {**constant, **given})}, at))
    return Trace(constant, tuple(made))


def _positions(module: Module, steps: int) -> range:
    """Values of ``pos``, step by step; one step where there is no such scalar."""
    low, high = module.scalars.get("pos", (0, 0))
    return range(low, min(low + steps, high + 1))


def _embedded(module: Module, arrays: Arrays) -> dict[str, Array]:
    """By the name of its result, what each embedding of token ids gives."""
    found = {}
    for function in module.functions:
        names = {p.value: p.value.name for p in function.params}
        for op in function.body.ops:
            if isinstance(op, graph.Embed):
                ids, table = (arrays[names[v]] for v in op.tensors())
                axis = tensor_type(op.operands[1]).dims.index(op.dim)
                found[op.result.name] = np.moveaxis(table, axis, 0)[ids]
    return found


def check_same(
    before: Module,
    after: Module,
    seed: int = 0,
    steps: int = 3,
    reference: Sequence[Array] | None = None,
) -> Comparison:
    """Run both modules on a random trace of ``before`` and compare within the rounding bound.

    ``reference`` are results of ``before`` on that very trace, when they are known. Raises
    ``interp-mismatch`` when they differ by more.
    """
    trace = random_trace(before, seed, steps)
    wanted = run_trace(before, trace) if reference is None else reference
    precision = "f64"
    if "tile" in (before.level, after.level):
        precision = _coarsest(before, after)
    length = reduction_length(before, precision)
    result = compare(wanted, run_trace(after, trace), precision, length)
    if not result.agrees:
        _mismatch(before, after, result)
    return result


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


def _coarsest(*modules: Module) -> str:
    """The least precise element type of core memory."""
    order = ("bf16", "f16", "f32")
    used = {str(b.type.dtype) for m in modules if m.level == "tile" for b in m.buffers}
    return next((name for name in order if name in used), "f32")


def _mismatch(before: Module, after: Module, result: Comparison) -> NoReturn:
    fail(
        "interp-mismatch",
        f"'{after.name}' at {after.level} level does not compute what it did at {before.level} "
        f"level: {result.place} is off by {result.max_error:.3g}, rounding explains "
        f"{result.bound:.3g}",
    )
