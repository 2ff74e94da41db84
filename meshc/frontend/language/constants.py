"""Compile-time constants: arithmetic, conditions, and the bounds that keep them small."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import add, eq, ge, gt, le, lt, mul, ne, sub

from meshc.frontend.language.ast import (
    Call,
    Chain,
    Constant,
    Expression,
    Literal,
    Reference,
    Unary,
)
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

LARGEST = 10**18

Lookup = Callable[[Reference], Constant]

_ARITHMETIC = {"+": add, "-": sub, "*": mul}
_ORDER = {"<": lt, ">": gt, "<=": le, ">=": ge}
_EQUALITY = {"==": eq, "!=": ne}


def fold(expression: Expression, lookup: Lookup) -> Constant:
    """The value of a constant expression; ``lookup`` gives names their values or fails."""
    match expression:
        case Literal(value=value):
            return value
        case Reference():
            return lookup(expression)
        case Unary():
            return unary(expression.operator, fold(expression.operand, lookup), expression.span)
        case Chain(operands=operands, operators=operators):
            result = fold(operands[0], lookup)
            for operator, operand in zip(operators, operands[1:], strict=True):
                result = binary(operator.text, result, fold(operand, lookup), operator.span)
            return result
        case Call():
            return _call(expression, lookup)


def kind(value: Constant) -> str:
    """What a constant is called in messages."""
    if isinstance(value, bool):
        return "a truth value"
    return "a text" if isinstance(value, str) else "a number"


def unary(operator: str, value: Constant, span: Span) -> Constant:
    """``not``, ``-`` or ``+`` of a constant."""
    if operator == "not":
        return not truth(value, span)
    number = numeric(value, span)
    return -number if operator == "-" else number


def binary(operator: str, left: Constant, right: Constant, span: Span) -> Constant:
    """Two constants joined by an operator; division of whole numbers stays whole where exact."""
    if operator in ("and", "or"):
        both = truth(left, span), truth(right, span)
        return all(both) if operator == "and" else any(both)
    if operator in _EQUALITY:
        if kind(left) != kind(right):
            fail("bad-operand", f"compares {kind(left)} with {kind(right)}", span)
        return bool(_EQUALITY[operator](left, right))
    if operator == "@":
        fail("bad-operand", "'@' joins two tensors; these are constants", span, help="write '*'")
    numbers = numeric(left, span), numeric(right, span)
    if operator in _ORDER:
        return bool(_ORDER[operator](*numbers))
    return bounded(_arithmetic(operator, *numbers, span), span)


def square_root(value: Constant, span: Span) -> float:
    """``sqrt(value)`` of a number that is not negative."""
    number = numeric(value, span)
    if number < 0:
        fail("bad-constant", f"there is no square root of {number}", span)
    return math.sqrt(number)


def numeric(value: Constant, span: Span) -> int | float:
    """``value`` as a number, or an error."""
    if isinstance(value, (bool, str)):
        fail("bad-operand", f"a number is needed here, not {kind(value)}", span)
    return value


def truth(value: Constant, span: Span) -> bool:
    """``value`` as a truth value, or an error."""
    if not isinstance(value, bool):
        fail("bad-operand", f"a truth value is needed here, not {kind(value)}", span)
    return value


def bounded(number: int | float, span: Span) -> int | float:
    """``number`` when it is finite and not absurdly large."""
    if not math.isfinite(number) or (isinstance(number, int) and abs(number) > LARGEST):
        fail("bad-constant", "the number is too large", span)
    return number


def _arithmetic(operator: str, left: int | float, right: int | float, span: Span) -> int | float:
    if operator != "/":
        result: int | float = _ARITHMETIC[operator](left, right)
        return result
    if right == 0:
        fail("division-by-zero", "the divisor is 0", span)
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return left / right


def _call(call: Call, lookup: Lookup) -> Constant:
    if call.name != "sqrt" or len(call.arguments) != 1:
        fail("bad-constant", "only sqrt(number) can be called in a constant", call.span)
    return square_root(fold(call.arguments[0].value, lookup), call.span)
