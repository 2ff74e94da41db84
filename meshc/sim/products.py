"""Products of integers of 32 bits, which take several instructions, and what loops make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from meshc.sim import ir
from meshc.sim.control_flow import expressions, inside, parts, sets, statements
from meshc.sim.sema import csl_types as ty


def is_wide(node: ir.Expr) -> bool:
    """Whether ``node`` is a product of integers of more than 16 bits and no shift."""
    match node:
        case ir.Bin(op="*", type=ty.Int(bits=bits), left=left, right=right) if bits > 16:
            factors = [side.value for side in (left, right) if isinstance(side, ir.Const)]
            return not any(int(factor).bit_count() == 1 for factor in factors)
    return False


def narrow(function: ir.Function) -> Iterator[ir.Expr]:
    """The products of which 16 bits are used, as those in addresses are."""
    for stmt in statements(function.body):
        for expr in expressions(stmt):
            for part in inside(expr):
                match part:
                    case ir.Cast(type=ty.Int(bits=bits), operand=whole) if bits <= 16:
                        yield from _in_sum(whole)


def _in_sum(node: ir.Expr) -> Iterator[ir.Expr]:
    """The products in a sum, difference or product."""
    if isinstance(node, ir.Bin) and node.op in "+-*":
        yield from (*_in_sum(node.left), *_in_sum(node.right))
        if node.op == "*":
            yield node


def copies(function: ir.Function) -> dict[str, str]:
    """The locals that are set once, to what another local is, and that one."""
    times = Counter(name for stmt in statements(function.body) for name in sets(stmt))
    found: dict[str, str] = {}
    for stmt in statements(function.body):
        match stmt:
            case ir.SetLocal(var=var, value=ir.Local(type=kind, var=source)):
                if times[var.name] == 1 and kind == var.type:
                    found[var.name] = source.name
    return found


def largest(loop: ir.Loop, wanted: Callable[[ir.Expr], bool]) -> Iterator[ir.Expr]:
    """The expressions in a loop, and in the loops in it, that are ``wanted`` and no part of one."""
    left = [expr for stmt in statements([loop]) for expr in expressions(stmt)]
    while left:
        node = left.pop()
        if wanted(node):
            yield node
        else:
            left += parts(node)
