"""Loops that the vendor's compiler writes out: those of few passes, whose number is known.

Calls in such a loop may be of functions that are written in their place. Its counter is a number in
each pass, so that what depends on nothing else costs nothing, and there is no way back to its
beginning. Both back ends run it as a loop all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from meshc.sim import ir
from meshc.sim.control_flow import sets, statements
from meshc.sim.scalar_costs import ScalarCosts

_JUMPS = (ir.Break, ir.Continue, ir.Return)

Functions = Mapping[str, ir.Function]
Parts = Callable[[ir.Stmt], Iterable[ir.Expr]]
"""The parts of the expressions of a statement, equal ones once."""
Within = Callable[[ir.Loop], AbstractContextManager[None]]
"""While it lasts, what is moved out of a loop is no part of its statements."""


def unrolled(
    function: ir.Function, functions: Functions, costs: ScalarCosts, parts: Parts, within: Within
) -> dict[int, str]:
    """The counters of the loops of ``function`` that are written out, by the labels of the loops.
    Inner loops come first; all passes of a loop are at most ``costs.unrolled`` operations, and no
    ``@map`` is in it, nor a call but of one of ``functions`` that is written in its place."""
    found: dict[int, str] = {}
    _Sizes(functions, costs, parts, within, found).of(function.body)
    return found


def size_in_place(
    function: ir.Function, functions: Functions, costs: ScalarCosts, parts: Parts, within: Within
) -> int | None:
    """Operations of a function that is written in the place of its calls; None of another one."""
    return _Sizes(functions, costs, parts, within, {}).of_call(function.name)


class _Sizes:
    """Operations of code, as far as they are scalar; ``found`` gathers the loops that are written
    out."""

    def __init__(
        self,
        functions: Functions,
        costs: ScalarCosts,
        parts: Parts,
        within: Within,
        found: dict[int, str],
    ) -> None:
        self.functions, self.costs, self.found = functions, costs, found
        self.parts, self.within = parts, within
        self._open: list[str] = []

    def of(self, body: list[ir.Stmt]) -> int:
        """Operations of ``body``, its loops and calls as they are written."""
        size = 0
        starts: dict[str, int] = {}
        for stmt in body:
            size += 1 + sum(self.costs.size(part) for part in self.parts(stmt))
            if isinstance(stmt, ir.VectorOp):
                size += sum(self.costs.operand(operand) for operand in stmt.operands)
            elif isinstance(stmt, ir.If):
                size += self.of(stmt.then) + self.of(stmt.other)
            elif isinstance(stmt, ir.CallFn):
                size += self.of_call(stmt.name) or 0
            elif isinstance(stmt, ir.Loop):
                size += self._of_loop(stmt, starts)
            for name in set_by(stmt):
                starts.pop(name, None)
            if isinstance(stmt, ir.SetLocal) and isinstance(stmt.value, ir.Const):
                starts[stmt.var.name] = stmt.value.value
        return size

    def of_call(self, name: str) -> int | None:
        """Operations that stand in the place of a call of ``name``; None where the call stays, or
        the function leads to a call that stays."""
        callee = self.functions.get(name)
        if callee is None or name in self._open or self.costs.of_call(callee):
            return None
        self._open.append(name)
        size = self.of(callee.body) if self._stays_together(callee.body) else None
        self._open.pop()
        return size

    def _of_loop(self, loop: ir.Loop, starts: dict[str, int]) -> int:
        with self.within(loop):
            once = self.of(loop.head) + self.of(loop.body)
        counter, passes = _counted(loop, starts)
        if not counter or once * passes > self.costs.unrolled:
            return once
        if not self._stays_together(loop.body):
            return once
        self.found[loop.label] = counter
        return once * passes

    def _stays_together(self, body: list[ir.Stmt]) -> bool:
        """Whether nothing in ``body`` is a call that stays or a loop that is not written out."""
        for stmt in statements(body):
            if isinstance(stmt, ir.MapOp | ir.CallPtr):
                return False
            if isinstance(stmt, ir.Loop) and stmt.label not in self.found:
                return False
            if isinstance(stmt, ir.CallFn) and self.of_call(stmt.name) is None:
                return False
        return True


def _counted(loop: ir.Loop, starts: dict[str, int]) -> tuple[str, int]:
    """The counter of a loop that goes from one known number to another and its passes; an empty
    name where there is none."""
    match loop.cond:
        case ir.Bin(op="<" | ">" as op, left=ir.Local(var=var), right=ir.Const(value=end)):
            step = _step(loop.step[-1:], var.name)
        case _:
            return "", 0
    set_elsewhere = any(var.name in set_by(stmt) for stmt in (*loop.head, *loop.body))
    leaves = any(isinstance(stmt, _JUMPS) for stmt in statements(loop.body))
    if var.name not in starts or set_elsewhere or leaves or step * (1 if op == "<" else -1) <= 0:
        return "", 0
    return var.name, len(range(starts[var.name], end, step))


def counter_of(loop: ir.Loop) -> str:
    """The local that the end of each pass moves on and nothing else in the loop sets; an empty name
    where there is none."""
    for name in (name for stmt in loop.step[-1:] for name in sets(stmt)):
        within = any(name in set_by(stmt) for stmt in (*loop.head, *loop.body))
        if _step(loop.step[-1:], name) and not within:
            return name
    return ""


def _step(last: list[ir.Stmt], counter: str) -> int:
    """What the end of a pass adds to ``counter``; 0 where that is not known."""
    match last:
        case [
            ir.SetLocal(
                var=ir.Var(name=name),
                value=ir.Bin(
                    op="+" | "-" as op,
                    left=ir.Local(var=ir.Var(name=added)),
                    right=ir.Const(value=amount),
                ),
            )
        ] if name == added == counter:
            return int(amount) if op == "+" else -int(amount)
    return 0


def set_by(stmt: ir.Stmt) -> set[str]:
    """The locals that a statement, or one inside of it, sets."""
    return {name for one in statements([stmt]) for name in sets(one)}
