"""Loops that the vendor's compiler writes out: those of few passes, whose number is known.

The counter of such a loop is a number in each pass, so that what depends on nothing else costs
nothing, and there is no way back to its beginning. Both back ends run it as a loop all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshc.sim import ir
from meshc.sim.control_flow import sets, statements
from meshc.sim.scalar_costs import ScalarCosts

_LOOPS_AND_CALLS = (ir.Loop, ir.MapOp, ir.CallFn, ir.CallPtr)
_JUMPS = (ir.Break, ir.Continue, ir.Return)

Parts = Callable[[ir.Stmt], Iterable[ir.Expr]]
"""The parts of the expressions of a statement, equal ones once."""


def unrolled(function: ir.Function, costs: ScalarCosts, parts: Parts) -> dict[int, str]:
    """The counters of the loops of ``function`` that are written out, by the labels of the loops.
    Inner loops come first; all passes of a loop are at most ``costs.unrolled`` operations, and no
    ``@map`` or call is in it."""
    found: dict[int, str] = {}
    _size(function.body, costs, parts, found)
    return found


def _size(body: list[ir.Stmt], costs: ScalarCosts, parts: Parts, found: dict[int, str]) -> int:
    """Operations of ``body``, as far as they are scalar code, its loops as they are written."""
    size = 0
    starts: dict[str, int] = {}
    for stmt in body:
        size += 1 + sum(costs.part(part) for part in parts(stmt))
        if isinstance(stmt, ir.VectorOp):
            size += sum(costs.operand(operand) for operand in stmt.operands)
        elif isinstance(stmt, ir.If):
            size += _size(stmt.then, costs, parts, found) + _size(stmt.other, costs, parts, found)
        elif isinstance(stmt, ir.Loop):
            inner = [one for one in statements(stmt.body) if isinstance(one, _LOOPS_AND_CALLS)]
            once = _size(stmt.head, costs, parts, found) + _size(stmt.body, costs, parts, found)
            counter, passes = _counted(stmt, starts)
            written = once * passes <= costs.unrolled and all(
                isinstance(one, ir.Loop) and one.label in found for one in inner
            )
            if counter and written:
                found[stmt.label] = counter
            size += once * passes if counter and written else once
        for name in _set_by(stmt):
            starts.pop(name, None)
        if isinstance(stmt, ir.SetLocal) and isinstance(stmt.value, ir.Const):
            starts[stmt.var.name] = stmt.value.value
    return size


def _counted(loop: ir.Loop, starts: dict[str, int]) -> tuple[str, int]:
    """The counter of a loop that goes from one known number to another and its passes; an empty
    name where there is none."""
    match loop.cond:
        case ir.Bin(op="<" | ">" as op, left=ir.Local(var=var), right=ir.Const(value=end)):
            step = _step(loop.step[-1:], var.name)
        case _:
            return "", 0
    set_elsewhere = any(var.name in _set_by(stmt) for stmt in (*loop.head, *loop.body))
    leaves = any(isinstance(stmt, _JUMPS) for stmt in statements(loop.body))
    if var.name not in starts or set_elsewhere or leaves or step * (1 if op == "<" else -1) <= 0:
        return "", 0
    return var.name, len(range(starts[var.name], end, step))


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


def _set_by(stmt: ir.Stmt) -> set[str]:
    """The locals that a statement, or one inside of it, sets."""
    return {name for one in statements([stmt]) for name in sets(one)}
