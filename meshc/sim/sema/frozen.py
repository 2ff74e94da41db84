"""Hashable stand-ins for values known at compile time."""

from __future__ import annotations

from typing import Any

from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.values import Divided, FnVal, Module, RangeVal, Val


class _Same:
    """Equal to stand-ins of the same object only, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def frozen(value: Any) -> Any:
    """Equal for values that code cannot tell apart; an object of no known kind equals itself."""
    match value:
        case Val():
            return (str(value.type), frozen(value.v) if value.known else _Same(value.v))
        case list() | tuple():
            return tuple(map(frozen, value))
        case dict():
            return tuple((str(k), frozen(v)) for k, v in value.items())
        case Divided():
            return ("divided", frozen(value.range), frozen(value.parts))
        case RangeVal():
            return ("range", str(value.type), *map(frozen, (value.low, value.high, value.step)))
        case FnVal():
            return ("fn", value.module.number, value.name)
        case Module():
            return ("module", value.number)
        case float():
            return value.hex()
        case int() | str() | bool() | None:
            return value
        case Type():
            return str(value)
    return _Same(value)
