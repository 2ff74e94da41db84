"""Numbers that the operations of a loop take and that compiled code has in registers meanwhile.

The vendor's compiler knows that operations on vectors write no variable that nothing describes: a
number that one of them takes is read once, before the loop, and so it is where a function that is
written in the place of its call takes it. Both back ends ask here which numbers that are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from meshc.sim import ir
from meshc.sim.control_flow import expressions, inside, statements
from meshc.sim.descriptors import Mem
from meshc.sim.program import PeProgram
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.sema import csl_types as ty

Place = int | None
"""A variable by its address; None is memory that only the run knows."""
Code = tuple[str, int | None]
"""A loop by its function and its label; without a label all of the function."""
Held = Mapping[Code, frozenset[int]]
"""The variables whose numbers are in registers, where there are any."""


def place_of(addr: ir.Expr) -> Place:
    """The variable that an address lies in: that of a scalar, or where an array begins."""
    if isinstance(addr, ir.Const):
        return int(addr.value)
    if isinstance(addr, ir.Bin) and addr.op == "+" and isinstance(addr.left, ir.Const):
        return int(addr.left.value)
    return None


def held_numbers(program: PeProgram, pointed: set[str], costs: ScalarCosts) -> Held:
    """The variables that the loops of ``program`` read once before their passes, and those that a
    function finds in registers wherever it is written in the place of a call; ``pointed`` are the
    functions that pointers may lead to."""
    return _Search(program, pointed, costs).held()


class _Call(NamedTuple):
    """A call in the function ``caller`` and the loops around it."""

    caller: str
    loops: tuple[ir.Loop, ...]


class _Search:
    def __init__(self, program: PeProgram, pointed: set[str], costs: ScalarCosts) -> None:
        self.program, self.costs = program, costs
        self.functions = {function.name: function for function in program.functions}
        self.apart = pointed | _started(program)
        self.calls: dict[str, list[_Call]] = {}
        self.loops: list[tuple[str, ir.Loop]] = []
        self.described = {self._variable(addr) for addr in _described(program)}
        self._of_loops: dict[int, frozenset[int]] = {}
        for function in program.functions:
            self._visit(function.name, function.body, ())

    def held(self) -> Held:
        found: dict[Code, frozenset[int]] = {
            (name, loop.label): self._in_loop(loop) for name, loop in self.loops
        }
        found |= {(name, None): self._on_entry(name, ()) for name in self.calls}
        return {code: places for code, places in found.items() if places}

    def _visit(self, name: str, body: list[ir.Stmt], around: tuple[ir.Loop, ...]) -> None:
        """Find the loops and calls in ``body``, which stands in the function ``name``."""
        for stmt in body:
            match stmt:
                case ir.If():
                    self._visit(name, [*stmt.then, *stmt.other], around)
                case ir.Loop():
                    self.loops += [] if stmt.once else [(name, stmt)]
                    within = around if stmt.once else (*around, stmt)
                    self._visit(name, [*stmt.head, *stmt.body, *stmt.step], within)
                case ir.CallFn():
                    self.calls.setdefault(stmt.name, []).append(_Call(name, around))

    def _on_entry(self, name: str, inner: tuple[str, ...]) -> frozenset[int]:
        """What is in registers at every call of a function, which is written in their place; it
        leads to the calls ``inner``."""
        if name in inner or name in self.apart or self._in_place(name) is None:
            return frozenset()
        found = [
            self._on_entry(call.caller, (*inner, name)).union(*map(self._in_loop, call.loops))
            for call in self.calls.get(name, ())
        ]
        return frozenset.intersection(*found) if found else frozenset()

    def _in_place(self, name: str) -> ir.Function | None:
        """A function that is written in the place of its calls; None of another one."""
        function = self.functions.get(name)
        return None if function is None or self.costs.of_call(function) else function

    def _in_loop(self, loop: ir.Loop) -> frozenset[int]:
        """The variables of numbers that operations in ``loop`` take and that no pass writes."""
        found = self._of_loops.get(id(loop))
        if found is None:
            taken, written = set(self._taken([loop], ())), set[Place]()
            if taken:
                written = {self._variable(place) for place in self._written([loop], set())}
            kept = set() if None in written else taken
            apart = written | self.described
            found = frozenset(addr for addr in kept if self._variable(addr) not in apart)
            self._of_loops[id(loop)] = found
        return found

    def _variable(self, place: Place) -> Place:
        """Where the variable begins that has an address."""
        index = bisect_right(self.program.starts, -1 if place is None else place) - 1
        return place if place is None or index < 0 else self.program.starts[index]

    def _taken(self, body: list[ir.Stmt], within: tuple[str, ...]) -> Iterator[int]:
        """Addresses of the numbers that operations take, also in what is written in the place."""
        for stmt in statements(body):
            match stmt:
                case ir.VectorOp():
                    for operand in stmt.operands:
                        if isinstance(operand, ir.Load) and isinstance(operand.addr, ir.Const):
                            yield int(operand.addr.value)
                case ir.CallFn(name=name) if name not in within:
                    callee = self._in_place(name)
                    yield from () if callee is None else self._taken(callee.body, (*within, name))

    def _written(self, body: list[ir.Stmt], seen: set[str]) -> Iterator[Place]:
        """Variables that code writes, what it calls included."""
        for stmt in statements(body):
            match stmt:
                case ir.Store(addr=to) | ir.Copy(to=to):
                    yield place_of(to)
                case ir.CallPtr():
                    yield None
                case ir.CallFn(name=name) | ir.MapOp(fn=name) if name not in seen:
                    seen.add(name)
                    callee = self.functions.get(name)
                    yield from (None,) if callee is None else self._written(callee.body, seen)


def _described(program: PeProgram) -> Iterator[int]:
    """The addresses at which descriptors begin, and those that pointers may have."""
    code = [stmt for function in program.functions for stmt in statements(function.body)]
    for stmt in (*code, *program.dsr_loads):
        for part in (part for expr in expressions(stmt) for part in inside(expr)):
            if isinstance(part, ir.Const) and isinstance(part.value, Mem):
                yield part.value.addr
            elif isinstance(part, ir.Const) and isinstance(part.type, ty.Pointer):
                yield int(part.value)
    yield from (slot.addr for slot in program.slots if isinstance(slot, Mem))


def _started(program: PeProgram) -> set[str]:
    """The functions that something else than a call starts."""
    tables = (program.data_tasks, program.local_tasks, program.control_tasks, program.teardown,
              program.empty_handlers)  # fmt: skip
    started = {name for table in tables for name in table.values()}
    return started | {export.fn for export in program.exports.values()}
