"""Makes a descriptor in the only branch that uses it.

The vendor's compiler works out what has no effects where it is needed: of descriptors that are made
in front of some choices, each used in one of them, a PE makes those of the ways that it goes. What
a descriptor is made of is still worked out in the old place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshc.sim import ir
from meshc.sim.control_flow import expressions, inside, sets, statements
from meshc.sim.sema import csl_types as ty


def sink(function: ir.Function) -> None:
    """Move descriptors of ``function``, whose statements are changed."""
    made = {
        stmt.var.name
        for stmt in statements(function.body)
        if isinstance(stmt, ir.SetLocal) and _is_made(stmt)
    }
    if made:
        written = Counter(name for stmt in statements(function.body) for name in sets(stmt))
        read = _reads(function.body)
        _sink(function.body, {name: read[name] for name in made if written[name] == 1})


def _sink(body: list[ir.Stmt], reads: dict[str, int]) -> None:
    """Move the descriptors that ``body`` makes; ``reads`` says how often a function uses each."""
    for at in reversed(range(len(body))):
        stmt = body[at]
        if isinstance(stmt, ir.SetLocal) and _is_made(stmt) and reads.get(stmt.var.name):
            branch = _only_branch(body[at + 1 :], stmt.var.name, reads[stmt.var.name])
            if branch is not None:
                body[at : at + 1] = _parts_kept(stmt)
                branch.insert(0, stmt)
    for stmt in body:
        if isinstance(stmt, ir.If):
            _sink(stmt.then, reads)
            _sink(stmt.other, reads)
        elif isinstance(stmt, ir.Loop):
            _sink(stmt.body, reads)


def _is_made(stmt: ir.SetLocal) -> bool:
    return isinstance(stmt.value, ir.Runtime) and stmt.value.type in ty.DSDS


def _only_branch(body: list[ir.Stmt], name: str, reads: int) -> list[ir.Stmt] | None:
    """The branch of a choice in ``body`` where a local is read as often as in all the function."""
    choices = (stmt for stmt in body if isinstance(stmt, ir.If))
    branches = (branch for choice in choices for branch in (choice.then, choice.other))
    return next((branch for branch in branches if _reads(branch)[name] == reads), None)


def _parts_kept(stmt: ir.SetLocal) -> list[ir.Stmt]:
    """Statements that keep what a descriptor is made of; it reads what they kept from now on."""
    assert isinstance(stmt.value, ir.Runtime)
    kept: list[ir.Stmt] = []
    for number, arg in enumerate(stmt.value.args):
        if not isinstance(arg, ir.Const):
            var = ir.Var(f"{stmt.var.name}_{number}", arg.type)
            kept.append(ir.SetLocal(stmt.place, var, arg))
            stmt.value.args[number] = ir.Local(arg.type, var)
    return kept


def _reads(body: list[ir.Stmt]) -> Counter[str]:
    """How often each local is read in ``body``."""
    parts = (part for stmt in statements(body) for expr in _read_by(stmt) for part in inside(expr))
    return Counter(part.var.name for part in parts if isinstance(part, ir.Local))


def _read_by(stmt: ir.Stmt) -> Iterator[ir.Expr]:
    """The expressions of a statement, those of options too."""
    yield from expressions(stmt)
    if isinstance(stmt, ir.VectorOp | ir.LoadDsr):
        options = stmt.options
        gates = (options.unblock, options.on_control_unblock)
        single = (options.index, options.ut_id, options.activate, options.on_control_activate)
        yield from (expr for expr in single if expr is not None)
        yield from (gate[1] for gate in gates if gate is not None)
