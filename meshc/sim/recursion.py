"""Which functions need their memory variables on a stack: those that are entered again.

Variables whose address is taken are static, which costs nothing. That is wrong for a function that
may run again before it ends; a call in tail position ends it first.
"""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.control_flow import expressions, inside, reaching, statements
from meshc.sim.sema import csl_types as ty


def entered_again(functions: list[ir.Function]) -> set[str]:
    """Names of the functions that a call they have not ended may enter again."""
    targets = _pointer_targets(functions)
    calls = {f.name: _called(statements_of(f), targets) for f in functions}
    callers: dict[str, set[str]] = {}
    found = set()
    for function in functions:
        before_end = _called(_not_last(function), targets)
        if not before_end:
            continue
        if function.name not in callers:
            callers[function.name] = reaching(calls, {function.name})
        if before_end & callers[function.name]:
            found.add(function.name)
    return found


def statements_of(function: ir.Function) -> list[ir.Stmt]:
    """All statements of a function, the nested ones too."""
    return list(statements(function.body))


def _pointer_targets(functions: list[ir.Function]) -> set[str]:
    return {
        part.name
        for function in functions
        for stmt in statements(function.body)
        for expr in expressions(stmt)
        for part in inside(expr)
        if isinstance(part, ir.FnAddr)
    }


def _called(body: list[ir.Stmt], targets: set[str]) -> set[str]:
    found: set[str] = set()
    for stmt in body:
        match stmt:
            case ir.CallFn():
                found.add(stmt.name)
            case ir.MapOp():
                found.add(stmt.fn)
            case ir.CallPtr():
                found |= targets
    return found


def _not_last(function: ir.Function) -> list[ir.Stmt]:
    """The statements after which the function goes on."""
    last: list[int] = []
    if function.result == ty.VOID:
        _tails(function.body, last)
    return [stmt for stmt in statements(function.body) if id(stmt) not in last]


def _tails(body: list[ir.Stmt], found: list[int]) -> None:
    ends = [*body, ir.Return("", None)]
    for stmt, following in zip(body, ends[1:], strict=False):
        if not isinstance(following, ir.Return) or following.value is not None:
            continue
        if isinstance(stmt, ir.If):
            _tails(stmt.then, found)
            _tails(stmt.other, found)
        elif isinstance(stmt, ir.CallFn) and stmt.dst is None:
            found.append(id(stmt))
