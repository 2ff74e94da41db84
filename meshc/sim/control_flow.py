"""Facts about lowered functions: which may block, which call each other in a cycle."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshc.sim import ir
from meshc.sim.program import PeProgram
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Type

_BLOCKING_KINDS = (ty.FABIN, ty.FABOUT, ty.FIFO)


@dataclass
class Facts:
    """``blocking`` and ``cyclic`` hold names of functions, ``calls`` who may call whom."""

    blocking: set[str] = field(default_factory=set)
    cyclic: set[str] = field(default_factory=set)
    pointer_targets: set[str] = field(default_factory=set)
    fabric_registers: set[tuple[str, int]] = field(default_factory=set)
    calls: dict[str, set[str]] = field(default_factory=dict)

    def may_block(self, operand: ir.Expr) -> bool:
        """Whether a synchronous operation with this operand may have to wait."""
        if operand.type in _BLOCKING_KINDS:
            return True
        if operand.type in ty.DSRS:
            return register_key(operand) in self.fabric_registers
        return False


def register_key(operand: ir.Expr) -> tuple[str, int]:
    """Bank and number of a register operand; -1 when the number is not known."""
    number = operand.value if isinstance(operand, ir.Const) else -1
    return str(operand.type)[4:], number


def statements(body: list[ir.Stmt]) -> Iterator[ir.Stmt]:
    """All statements, the nested ones too."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, ir.If):
            yield from statements(stmt.then)
            yield from statements(stmt.other)
        elif isinstance(stmt, ir.Loop):
            yield from statements(stmt.head)
            yield from statements(stmt.body)
            yield from statements(stmt.step)


def sets(stmt: ir.Stmt) -> set[str]:
    """The locals that a statement itself sets."""
    given = (getattr(stmt, name, None) for name in ("var", "dst", "result"))
    return {var.name for var in given if isinstance(var, ir.Var)}


_OF_STATEMENTS = ("cond", "value", "addr", "index", "target", "dst", "dsd", "to", "source")
_LISTS_OF_STATEMENTS = ("args", "operands", "sources")
_OF_EXPRESSIONS = ("addr", "index", "left", "right", "operand", "cond", "then", "other")


def _held(kind: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``names`` that are fields of a class."""
    fields = {field.name for field in dataclasses.fields(kind)}
    return tuple(name for name in names if name in fields)


@functools.cache
def _parts_of_statement(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields that may be expressions, and those that are lists of them."""
    return _held(kind, _OF_STATEMENTS), _held(kind, _LISTS_OF_STATEMENTS)


@functools.cache
def _parts_of_expression(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _held(kind, _OF_EXPRESSIONS), _held(kind, ("args",))


def expressions(stmt: ir.Stmt) -> Iterator[ir.Expr]:
    """The expressions standing directly in a statement."""
    kind: Any = type(stmt)
    return _standing_in(stmt, *_parts_of_statement(kind))


def parts(expr: ir.Expr) -> Iterator[ir.Expr]:
    """The expressions standing directly in an expression."""
    kind: Any = type(expr)
    return _standing_in(expr, *_parts_of_expression(kind))


def _standing_in(
    whole: ir.Stmt | ir.Expr, single: Sequence[str], lists: Sequence[str]
) -> Iterator[ir.Expr]:
    """The expressions in the fields ``single`` and ``lists`` of a statement or an expression."""
    for name in single:
        part = getattr(whole, name)
        if isinstance(part, ir.Expr):
            yield part
    for name in lists:
        yield from getattr(whole, name)


def inside(expr: ir.Expr) -> Iterator[ir.Expr]:
    """``expr`` and all its parts, each before its own."""
    left = [expr]
    while left:
        whole = left.pop()
        yield whole
        left += reversed(list(parts(whole)))


def analyse(program: PeProgram) -> Facts:
    """Find the facts of one PE program."""
    facts = Facts()
    calls = facts.calls
    blocks: set[str] = set()
    pointers: dict[str, bool] = {}
    _registers(program, facts)
    for function in program.functions:
        called: set[str] = set()
        for stmt in statements(function.body):
            for expr in expressions(stmt):
                for part in inside(expr):
                    if isinstance(part, ir.FnAddr):
                        facts.pointer_targets.add(part.name)
            if isinstance(stmt, ir.CallFn):
                called.add(stmt.name)
            elif isinstance(stmt, ir.MapOp):
                called.add(stmt.fn)
                if any(
                    facts.may_block(o) for o in [*stmt.sources, *([stmt.dst] if stmt.dst else [])]
                ):
                    blocks.add(function.name)
            elif isinstance(stmt, ir.VectorOp) and not stmt.options.is_async:
                if any(facts.may_block(o) for o in stmt.operands):
                    blocks.add(function.name)
            elif isinstance(stmt, ir.CallPtr):
                pointers[function.name] = True
        calls[function.name] = called
    for name in pointers:
        calls[name] |= facts.pointer_targets
    facts.blocking = reaching(calls, blocks)
    facts.cyclic = _cyclic(calls)
    return facts


def _registers(program: PeProgram, facts: Facts) -> None:
    loads = [s for f in program.functions for s in statements(f.body)]
    for stmt in [*loads, *program.dsr_loads]:
        if isinstance(stmt, ir.LoadDsr) and is_blocking_kind(stmt.dsd.type):
            number = stmt.number.value if isinstance(stmt.number, ir.Const) else -1
            facts.fabric_registers.add((stmt.bank, number))


def is_blocking_kind(kind: Type) -> bool:
    """Whether a descriptor of this kind may make an operation wait."""
    return kind in _BLOCKING_KINDS


def reaching(calls: dict[str, set[str]], targets: set[str]) -> set[str]:
    """``targets`` and all functions that may call one of them, also through others."""
    callers: dict[str, set[str]] = {}
    for name, called in calls.items():
        for other in called:
            callers.setdefault(other, set()).add(name)
    found, work = set(targets), list(targets)
    while work:
        for name in callers.get(work.pop(), ()):
            if name not in found:
                found.add(name)
                work.append(name)
    return found


def _cyclic(calls: dict[str, set[str]]) -> set[str]:
    """Functions that can reach themselves."""
    found = set()
    for start in calls:
        seen: set[str] = set()
        work = list(calls[start])
        while work:
            name = work.pop()
            if name == start:
                found.add(start)
                break
            if name not in seen:
                seen.add(name)
                work += calls.get(name, ())
    return found
