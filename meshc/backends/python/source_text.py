"""Python source text: calls and conditions broken over lines as a formatter would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class Chain:
    """Operands with an operator before each but the first, where a line may be broken."""

    operators: tuple[str, ...] | str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.lines())

    def lines(self) -> list[str]:
        """One operand per line."""
        first, *others = self.operands
        pairs = zip(self.operators, others, strict=True)
        return [first, *(f"{operator} {operand}" for operator, operand in pairs)]


def joined(operator: str, operands: Sequence[str]) -> Chain:
    """Operands joined by one operator."""
    return Chain((operator,) * (len(operands) - 1), tuple(operands))


Argument = str | Chain


def call(indent: int, head: str, arguments: Sequence[Argument], tail: str = "") -> list[str]:
    """``head(arguments)tail`` on one line, with the arguments on one line, or on one line each."""
    pad, inner = " " * indent, " " * (indent + 4)
    joined = ", ".join(map(str, arguments))
    if len(pad + head + joined + tail) + 2 <= WIDTH:
        return [f"{pad}{head}({joined}){tail}"]
    opening, closing = f"{pad}{head}(", f"{pad}){tail}"
    if len(inner + joined) <= WIDTH:
        return [opening, inner + joined, closing]
    if len(arguments) == 1 and isinstance(arguments[0], Chain):
        return [opening, *(inner + line for line in arguments[0].lines()), closing]
    return [opening, *(line for a in arguments for line in _argument(inner, a)), closing]


def _argument(inner: str, argument: Argument) -> list[str]:
    line = f"{inner}{argument},"
    if len(line) <= WIDTH:
        return [line]
    if isinstance(argument, str):
        # a view of a view: one step on each line
        return [inner + step for step in re.split(r"(?=\.(?:shaped|ordered)\()", argument + ",")]
    name, equals, first = argument.operands[0].partition("=")
    broken = Chain(argument.operators, (first, *argument.operands[1:])) if equals else argument
    head = f"{inner}{name}=(" if equals and name.isidentifier() else f"{inner}("
    return [head, *(f"{inner}    {line}" for line in broken.lines()), f"{inner}),"]
