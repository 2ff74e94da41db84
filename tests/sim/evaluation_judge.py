"""What the programs of ``evaluation_programs`` must give.

Everything is computed once, from left to right; values are copied when they are stored or handed
over.
"""

from __future__ import annotations

import copy
from typing import Any

from evaluation_programs import Maker

U32 = 0xFFFFFFFF


class TooLong(Exception):
    """The program does more than a test should."""


class Judge:
    """Runs a program: ``results`` are the three numbers, ``steps`` bounds the work."""

    def __init__(self, made: Maker, steps: int = 20_000) -> None:
        self.left = steps
        self.functions = {f["name"]: f for f in made.functions}
        self.top: dict[str, Any] = {
            **{f"g{i}": i + 3 for i in range(3)},
            "s0": {"a": 7, "b": 8},
            "a0": [1, 2, 4],
            "r0": {"s": {"a": 9, "b": 10}, "t": [5, 6, 7], "c": 11},
            "ss": [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}],
        }
        self.pointer = "other"
        scope: dict[str, Any] = {}
        self._run(made.body, scope)
        self.results = [self.value(e, scope) for e in made.results]

    def value(self, node: Any, scope: dict[str, Any]) -> Any:
        """The value of an expression, and its effects."""
        self.left -= 1
        if self.left < 0:
            raise TooLong
        match node:
            case ("lit", n):
                return n
            case ("path", steps):
                holder, key = self._place(steps, scope)
                return copy.deepcopy(holder[key]) if not _is_place(holder[key]) else holder[key]
            case ("shape", name):
                return copy.deepcopy(scope[name])
            case ("address", steps):
                return self._place(steps, scope)
            case ("mod", value):
                return self.value(value, scope) % 3
            case ("bin", op, left, right):
                return _number(op, self.value(left, scope), self.value(right, scope))
            case ("cmp", op, left, right):
                a, b = self.value(left, scope), self.value(right, scope)
                return {"<": a < b, "==": a == b, ">=": a >= b}[op]
            case ("and", left, right):
                return self.value(left, scope) and self.value(right, scope)
            case ("or", left, right):
                return self.value(left, scope) or self.value(right, scope)
            case ("if", test, then, other):
                return self.value(then if self.value(test, scope) else other, scope)
            case ("block", statement, value):
                inner = dict(scope)
                self._run([statement], inner, scope)
                return self.value(value, scope)
            case ("switch", subject, arms):
                return self.value(arms[self.value(subject, scope) % 3], scope)
            case ("member", value, name):
                return self.value(value, scope)[name]
            case ("element", value, n):
                return self.value(value, scope)[n]
            case ("call", name, args):
                return self._call(name, [self.value(a, scope) for a in args])
            case ("callptr", value):
                target = self.pointer
                return self._call(target, [self.value(value, scope)])
            case ("anon", fields):
                return {name: self.value(v, scope) for name, v in fields}
            case ("S", (a, b)):
                return {"a": self.value(a, scope), "b": self.value(b, scope)}
            case ("A", values):
                return [self.value(v, scope) for v in values]
            case ("R", (s, t, c)):
                return {"s": self.value(s, scope), "t": self.value(t, scope),
                        "c": self.value(c, scope)}  # fmt: skip
        raise AssertionError(node)

    def _call(self, name: str, args: list[Any]) -> Any:
        if name == "other":
            self.top["g1"] = (self.top["g1"] + args[0]) & U32
            return (args[0] * 3) & U32
        fn = self.functions[name]
        scope = {param: value for (param, _), value in zip(fn["params"], args, strict=True)}
        self._run(fn["body"], scope)
        return self.value(fn["value"], scope)

    def _place(self, steps: tuple[Any, ...], scope: dict[str, Any]) -> tuple[Any, Any]:
        """Holder and key of a part of a variable."""
        holder: Any = scope if steps[0] in scope else self.top
        key: Any = steps[0]
        for step in steps[1:]:
            if step == "*":
                holder, key = holder[key]
                continue
            if not isinstance(step, str):
                step = step[1] if step[0] == "known" else self.value(step, scope)
            holder, key = holder[key], step
        return holder, key

    def _run(
        self, body: list[Any], scope: dict[str, Any], outer: dict[str, Any] | None = None
    ) -> None:
        for node in body:
            self.left -= 1
            if self.left < 0:
                raise TooLong
            match node:
                case ("assign", steps, op, value):
                    holder, key = self._place(steps, outer or scope)
                    before = holder[key]
                    new = self.value(value, outer or scope)
                    _store(holder, key, _number(op, before, new) if op else new)
                case ("declare", name, _, _, value):
                    scope[name] = self.value(value, scope)
                case ("pointer", which):
                    self.pointer = "other" if which else "f0"
                case ("when", test, then, other):
                    self._inside(then if self.value(test, scope) else other, scope)
                case ("each", subject, name, loop):
                    self._each(subject, name, loop, scope)
                case ("count", bound, name, loop):
                    for number in range(self.value(bound, scope)):
                        scope[name] = number
                        self._inside(loop, scope)
                    scope.pop(name, None)

    def _each(self, subject: Any, name: str, loop: list[Any], scope: dict[str, Any]) -> None:
        """A loop over a variable sees what its elements are when it comes to them."""
        if subject[0] == "path":
            holder, key = self._place(subject[1], scope)
            values: Any = holder[key]
        else:
            values = self.value(subject, scope)
        for position in range(3):
            scope[name] = values[position]
            self._inside(loop, scope)
        scope.pop(name, None)

    def _inside(self, body: list[Any], scope: dict[str, Any]) -> None:
        names = set(scope)
        self._run(body, scope)
        for name in set(scope) - names:
            del scope[name]


def _store(holder: Any, key: Any, value: Any) -> None:
    """Arrays and structs stay where they are: pointers and loops look at them there."""
    if isinstance(value, dict | list):
        for part in value if isinstance(value, dict) else range(len(value)):
            _store(holder[key], part, value[part])
    else:
        holder[key] = value


def _is_place(value: Any) -> bool:
    return isinstance(value, tuple)


def _number(op: str, left: int, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right, "^": left ^ right}[op] & U32
