"""What compiled code has in registers: values that were worked out before and have not changed.

The vendor's compiler works a value out once where it is used twice in straight code, and reads a
variable again only when something may have written it. Products of 32 bits that no pass of a loop
changes it works out before the loop, and those of the loop's counter by a sum in each pass. Both
back ends ask here which expressions cost nothing for that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from meshc.sim import ir
from meshc.sim.control_flow import expressions, inside, sets
from meshc.sim.held_numbers import Held, Place, place_of
from meshc.sim.products import copies, is_wide, largest, narrow
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.unrolling import Functions, counter_of, set_by, size_in_place, unrolled


class _Value(NamedTuple):
    """An expression: equal ones have one ``key``, None where no two are taken to be equal. It
    depends on ``locals`` and on memory."""

    key: Hashable
    locals: frozenset[str]
    places: frozenset[Place]


Known = dict[Hashable, _Value]


class KnownValues:
    """The values known at a point of a function."""

    def __init__(self, costs: ScalarCosts) -> None:
        self.costs = costs
        self._known: Known = {}
        self._values: dict[int, tuple[ir.Expr, _Value]] = {}
        self._unrolled: dict[int, str] = {}
        self._counters: set[str] = set()
        self._moved: list[set[Hashable]] = []
        self._copies: dict[str, str] = {}
        self._narrow: set[int] = set()
        self.numbers: Held = {}
        self._function = ""
        self._held: list[frozenset[int]] = []

    def begin(self, function: ir.Function, functions: Functions) -> None:
        """At the beginning of a function, one of ``functions``, nothing is known but the numbers
        that all of its callers have in registers."""
        self._values, self._copies = {}, copies(function)
        self._function = function.name
        self._held = [self.numbers.get((function.name, None), frozenset())]
        self._narrow = {id(node) for node in narrow(function)}
        self._unrolled = unrolled(function, functions, self.costs, self._parts, self._within)
        self.forget()

    def size_in_place(self, function: ir.Function, functions: Functions) -> int | None:
        """Operations of a function that is written in the place of its calls; None of another."""
        self._values, self._copies, self._held = {}, {}, [frozenset()]
        return size_in_place(function, functions, self.costs, self._parts, self._within)

    def binary(self, node: ir.Bin) -> int:
        """Cycles of one operation on two numbers."""
        return self.costs.binary(node, id(node) in self._narrow)

    def moved_out(self, loop: ir.Loop) -> tuple[int, int]:
        """Cycles before ``loop``, and in each pass of it, of what is moved out of its passes. From
        now on that is known, until the loop is left."""
        changed, counter = set_by(loop), counter_of(loop)
        moved: set[Hashable] = set()
        self._moved.append(moved)
        held = self.numbers.get((self._function, loop.label), frozenset()) - self._held[-1]
        self._held.append(self._held[-1] | held)
        before, each = len(held) * (self.costs.operation + self.costs.scalar), 0
        for node in largest(loop, lambda part: self._may_move(part, changed, counter)):
            value = self._value(node)
            if self._is_moved(value):
                continue
            if value.locals & changed:
                each += self.costs.operation
            elif value.key not in self._known:
                before += sum(self._part(part) for part in inside(node))
            moved.add(value.key)
        return before, each

    def _may_move(self, node: ir.Expr, changed: set[str], counter: str) -> bool:
        """Whether ``node`` has a product of 32 bits and no pass changes it, or is one that the
        ``counter`` alone changes."""
        value = self._value(node)
        if value.key is None or value.places or not any(is_wide(part) for part in inside(node)):
            return False
        varies = value.locals & changed
        return not varies or (is_wide(node) and varies == {counter})

    def _part(self, node: ir.Expr) -> int:
        return self.binary(node) if isinstance(node, ir.Bin) else self.costs.part(node)

    def _is_moved(self, value: _Value) -> bool:
        return any(value.key in moved for moved in self._moved)

    @contextmanager
    def _within(self, loop: ir.Loop) -> Iterator[None]:
        """While the operations in ``loop`` are counted."""
        self.forget()
        self.moved_out(loop)
        yield
        self._moved.pop()
        self._held.pop()

    def enter(self, loop: ir.Loop) -> bool:
        """At the beginning of a pass of ``loop``; whether its passes are written out."""
        self.forget()
        counter = self._unrolled.get(loop.label)
        if counter is not None:
            self._counters.add(counter)
        return counter is not None

    def leave(self, loop: ir.Loop) -> None:
        """After the last pass of ``loop``."""
        self.forget()
        self._moved.pop()
        self._held.pop()
        self._counters.discard(self._unrolled.get(loop.label, ""))

    def repeats(self, node: ir.Expr) -> bool:
        """Whether ``node`` is known; from now on it is."""
        value = self._value(node)
        if value.key is None:
            return False
        if self._is_held(node):
            return True
        if value.locals and not value.places and value.locals <= self._counters:
            return True
        if value.key in self._known or self._is_moved(value):
            return True
        self._known[value.key] = value
        return False

    def operand(self, node: ir.Expr) -> int:
        """Cycles of an operand of a vector operation, what it is apart."""
        return 0 if self._is_held(node) else self.costs.operand(node)

    def _is_held(self, node: ir.Expr) -> bool:
        """Whether ``node`` is a number that is in a register for all of a loop."""
        match node:
            case ir.Load(addr=ir.Const(value=addr)):
                return addr in self._held[-1]
        return False

    def after(self, stmt: ir.Stmt) -> None:
        """A statement has been carried out; choices and loops see to themselves."""
        if isinstance(stmt, ir.Store):
            place = place_of(stmt.addr)
            self._keep(lambda value: not value.places or _apart(value, place))
            self.repeats(ir.Load(stmt.type, stmt.addr))
        elif not _leaves_memory(stmt):
            self._keep(lambda value: not value.places)
        names = sets(stmt)
        if names:
            self._keep(lambda value: not value.locals & names)

    def forget(self) -> None:
        """Nothing is known where ways meet that are not followed."""
        self._known = {}

    def now(self) -> Known:
        """What is known, to come back to it."""
        return dict(self._known)

    def other_way(self, first: list[ir.Stmt], before: Known) -> Known | None:
        """The ``first`` way of a choice has ended and the other one begins where ``before`` was
        known. What was known at its end; None where it leads elsewhere."""
        ended, self._known = self._known, dict(before)
        return None if _leads_away(first) else ended

    def meet(self, second: list[ir.Stmt], other: Known | None) -> None:
        """The ``second`` way meets the first, which ended with what ``other_way`` gave."""
        if other is None:
            return
        if _leads_away(second):
            self._known = other
        else:
            self._known = {key: v for key, v in self._known.items() if key in other}

    def _parts(self, stmt: ir.Stmt) -> Iterator[ir.Expr]:
        """The parts of the expressions of a statement, equal ones once."""
        self.forget()
        for expr in expressions(stmt):
            yield from (part for part in inside(expr) if not self.repeats(part))

    def _keep(self, stays: Callable[[_Value], bool]) -> None:
        self._known = {key: value for key, value in self._known.items() if stays(value)}

    def _value(self, node: ir.Expr) -> _Value:
        found = self._values.get(id(node))
        if found is None:
            found = self._values[id(node)] = node, self._made(node)
        return found[1]

    def _made(self, node: ir.Expr) -> _Value:
        kind = str(node.type)
        match node:
            case ir.Const() if isinstance(node.value, int | float):
                return _Value(("const", kind, node.value), frozenset(), frozenset())
            case ir.Local():
                name = self._copies.get(node.var.name, node.var.name)
                return _Value(("local", name), frozenset((name,)), frozenset())
            case ir.Load():
                found = self._joined(("load", kind), (node.addr,))
                return found._replace(places=found.places | {place_of(node.addr)})
            case ir.Bin():
                return self._joined((node.op, kind), (node.left, node.right))
            case ir.Un():
                return self._joined((node.op, kind), (node.operand,))
            case ir.Cast() | ir.Bits():
                return self._joined((type(node).__name__, kind), (node.operand,))
            case ir.Select():
                return self._joined(("select", kind), (node.cond, node.then, node.other))
        return _Value(None, frozenset(), frozenset())

    def _joined(self, head: tuple[str, ...], parts: tuple[ir.Expr, ...]) -> _Value:
        values = [self._value(part) for part in parts]
        keys = [value.key for value in values]
        return _Value(
            None if None in keys else (*head, *keys),
            frozenset().union(*(value.locals for value in values)),
            frozenset().union(*(value.places for value in values)),
        )


def _apart(value: _Value, place: Place) -> bool:
    """Whether a value does not depend on what is stored at ``place``."""
    return place is not None and not value.places & {place, None}


def _leaves_memory(stmt: ir.Stmt) -> bool:
    """Whether a statement writes no variable; choices and loops have seen to theirs."""
    if isinstance(stmt, ir.Effect):
        return stmt.name.startswith(("activate", "block", "unblock"))
    return not isinstance(stmt, ir.CallFn | ir.CallPtr | ir.VectorOp | ir.MapOp | ir.Copy)


def _leads_away(body: list[ir.Stmt]) -> bool:
    """Whether what follows a block is not reached from its end."""
    return bool(body) and isinstance(body[-1], ir.Return | ir.Break | ir.Continue)
