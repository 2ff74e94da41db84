"""Random CSL programs about the order in which values are computed.

A program is a tree of tuples; :class:`Writer` spells it in CSL, the judge (``evaluation_judge``)
says what it must give. They share no code with the simulator.
"""

from __future__ import annotations

import random
from typing import Any

STRUCT = ("a", "b")  # S: two numbers; R: one S, three numbers and one number
SHAPES: dict[str, Any] = {
    "flat": {"a": "u32", "b": "u32"},
    "pair": {0: "u32", 1: "u32"},
    "deep": {"p": {"a": "u32", "b": "u32"}, "q": "u32"},
    "mixed": {"arr": "A", "s": "S", "x": "u32"},
    "tuple": {0: "u32", 1: {"k": "u32", "t": {0: "S", 1: "u32"}}},
}


class Maker:
    """Makes one program: ``functions`` in the order in which they may call each other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions: list[dict[str, Any]] = []
        self.locals: list[tuple[str, Any, bool]] = []  # name, type or shape, may be assigned
        self.count = 0
        for number in range(self.random.randint(2, 5)):
            self.functions.append(self._function(number))
        self.locals = []
        self.body = self._statements(self.random.randint(3, 7), 2)
        self.results = [self.expr("u32", 3) for _ in range(3)]

    def _function(self, number: int) -> dict[str, Any]:
        pick, rng = self.random.random(), self.random
        params: list[tuple[str, Any]] = []
        for position in range(rng.randint(1, 3)):
            kind = rng.choice(["u32", "u32", "u32", "S", "A", "R", "ptr", "known", *SHAPES])
            params.append((f"p{position}", kind))
        if number == 0:
            params = [("p0", "u32")]  # what function pointers point to
        result = "u32" if pick < 0.8 or number == 0 else rng.choice(["S", "A"])
        self.locals = [(name, kind, False) for name, kind in params]
        body = self._statements(rng.randint(1, 3), 1)
        value = self.expr(result, 2)
        inline = number > 0 and rng.random() < 0.15
        return {"name": f"f{number}", "params": params, "result": result, "body": body,
                "value": value, "inline": inline}  # fmt: skip

    # --- expressions ---

    def expr(self, kind: Any, depth: int) -> Any:
        """A random expression of a type, or a literal of a shape."""
        if isinstance(kind, dict):
            fields = list(kind.items())
            return ("anon", [(name, self.expr(part, depth - 1)) for name, part in fields])
        if kind in SHAPES:
            same = [n for n, k, _ in self.locals if k == kind]
            if same and self.random.random() < 0.3:
                return ("shape", self.random.choice(same))
            return self.expr(SHAPES[kind], depth)
        if kind == "ptr":
            return self._pointer(depth)
        if kind == "known":
            return ("lit", self.random.randrange(50))
        return {"u32": self._number, "S": self._struct, "A": self._array, "R": self._record}[kind](
            depth
        )

    def _number(self, depth: int) -> Any:
        rng = self.random
        pick = rng.random()
        if depth <= 0 or pick < 0.12:
            return ("lit", rng.randrange(20)) if rng.random() < 0.3 else self._leaf(depth)
        if pick < 0.25:
            return self._leaf(depth)
        if pick < 0.6 and self.functions:
            return self._call("u32", depth) or self._leaf(depth)
        if pick < 0.82:
            return ("bin", rng.choice("+-*^"), self._number(depth - 1), self._number(depth - 1))
        if pick < 0.88:
            return ("if", self._condition(depth - 1), self._number(depth - 1),
                    self._number(depth - 1))  # fmt: skip
        if pick < 0.92:
            return ("block", self._simple(depth - 1), self._number(depth - 1))
        if pick < 0.95:
            arms = [self._number(depth - 1) for _ in range(3)]
            return ("switch", self._number(depth - 1), arms)
        if pick < 0.97:
            return ("member", self._struct(depth - 1), rng.choice(STRUCT))
        return ("element", self._array(depth - 1), rng.randrange(3))

    def _leaf(self, depth: int) -> Any:
        """A number that is read from somewhere."""
        options: list[Any] = [("path", (f"g{i}",)) for i in range(3)]
        options += [("path", ("s0", "a")), ("path", ("r0", "s", "b")), ("path", ("r0", "c")),
                    ("path", ("a0", self._index(depth))),
                    ("path", ("ss", self._index(depth), self.random.choice(STRUCT))),
                    ("path", ("r0", "t", self._index(depth)))]  # fmt: skip
        for name, kind, _ in self.locals:
            options += [("path", (name, *steps)) for steps in self._numbers_of(kind, depth)] * 2
        return self.random.choice(options)

    def _numbers_of(self, kind: Any, depth: int) -> list[tuple[Any, ...]]:
        """Paths to the numbers inside of a value."""
        if kind in ("u32", "known"):
            return [()]
        if kind == "ptr":
            return [("*",)]
        if kind == "S":
            return [("a",), ("b",)]
        if kind == "A":
            return [(self._index(depth),)]
        if kind == "R":
            return [("s", "a"), ("t", self._index(depth)), ("c",)]
        shape = SHAPES[kind] if isinstance(kind, str) else kind
        return [
            ((("known", name) if isinstance(name, int) else name), *rest)
            for name, part in shape.items()
            for rest in self._numbers_of(part, depth)
        ]

    def _index(self, depth: int) -> Any:
        """An index from 0 to 2: a literal or ``expression % 3``."""
        if depth <= 1 or self.random.random() < 0.5:
            return ("lit", self.random.randrange(3))
        return ("mod", self._number(depth - 2))

    def _condition(self, depth: int) -> Any:
        test = ("cmp", self.random.choice(["<", "==", ">="]), self._number(depth),
                self._number(depth))  # fmt: skip
        if self.random.random() < 0.3:
            return (self.random.choice(["and", "or"]), test, self._condition(depth - 1))
        return test

    def _call(self, result: str, depth: int) -> Any:
        able = [f for f in self.functions if f["result"] == result]
        if result == "u32" and self.functions and self.random.random() < 0.1:
            return ("callptr", self._number(depth - 1))
        if not able:
            return None
        fn = self.random.choice(able)
        return ("call", fn["name"], [self.expr(kind, depth - 1) for _, kind in fn["params"]])

    def _struct(self, depth: int) -> Any:
        pick = self.random.random()
        if depth > 0 and pick < 0.3:
            made = self._call("S", depth)
            if made is not None:
                return made
        if depth > 0 and pick < 0.7:
            return ("S", [self._number(depth - 1), self._number(depth - 1)])
        options: list[Any] = [("s0",), ("r0", "s"), ("ss", self._index(depth))]
        options += [(n,) for n, k, _ in self.locals if k == "S"]
        return ("path", self.random.choice(options))

    def _array(self, depth: int) -> Any:
        pick = self.random.random()
        if depth > 0 and pick < 0.3:
            made = self._call("A", depth)
            if made is not None:
                return made
        if depth > 0 and pick < 0.7:
            return ("A", [self._number(depth - 1) for _ in range(3)])
        options: list[Any] = [("a0",), ("r0", "t")]
        options += [(n,) for n, k, _ in self.locals if k == "A"]
        return ("path", self.random.choice(options))

    def _record(self, depth: int) -> Any:
        if depth > 0 and self.random.random() < 0.6:
            return ("R", [self._struct(depth - 1), self._array(depth - 1),
                          self._number(depth - 1)])  # fmt: skip
        return ("path", self.random.choice(
            [("r0",), *((n,) for n, k, _ in self.locals if k == "R")]))  # fmt: skip

    def _pointer(self, depth: int) -> Any:
        same = [n for n, k, _ in self.locals if k == "ptr"]
        if same and self.random.random() < 0.3:
            return ("path", (self.random.choice(same),))
        return ("address", self._target(depth))

    # --- statements ---

    def _target(self, depth: int) -> tuple[Any, ...]:
        """The path of a number that may be assigned to."""
        options: list[tuple[Any, ...]] = [
            ("g0",), ("g1",), ("g2",), ("s0", "a"), ("s0", "b"), ("r0", "s", "a"), ("r0", "c"),
            ("a0", self._index(depth)), ("ss", self._index(depth), "b"),
            ("r0", "t", self._index(depth)),
        ]  # fmt: skip
        for name, kind, free in self.locals:
            if free:
                options += [(name, *steps) for steps in self._numbers_of(kind, depth)] * 2
            elif kind == "ptr":
                options.append((name, "*"))
        return self.random.choice(options)

    def _simple(self, depth: int) -> Any:
        """An assignment."""
        op = self.random.choice(["", "", "+", "^"])
        return ("assign", self._target(depth), op, self._number(max(depth, 1)))

    def _statements(self, count: int, depth: int) -> list[Any]:
        return [self._statement(depth) for _ in range(count)]

    def _scoped(self, count: int, depth: int) -> list[Any]:
        before = list(self.locals)
        body = self._statements(count, depth)
        self.locals = before
        return body

    def _statement(self, depth: int) -> Any:
        rng = self.random
        pick = rng.random()
        if pick < 0.35:
            return self._simple(2)
        if pick < 0.6:
            return self._declaration()
        if pick < 0.7:
            kind = rng.choice(["S", "A", "R"])
            paths = {"S": [("s0",), ("r0", "s"), ("ss", self._index(2))],
                     "A": [("a0",), ("r0", "t")], "R": [("r0",)]}[kind]  # fmt: skip
            return ("assign", rng.choice(paths), "", self.expr(kind, 2))
        if pick < 0.75 and self.functions:
            return ("pointer", rng.randrange(2))
        if depth and pick < 0.85:
            return ("when", self._condition(2), self._scoped(2, depth - 1),
                    self._scoped(1, depth - 1))  # fmt: skip
        if depth and pick < 0.93:
            subject, name = self._array(2), self._fresh()
            before = list(self.locals)
            self.locals.append((name, "u32", False))
            body = self._scoped(2, depth - 1)
            self.locals = before
            return ("each", subject, name, body)
        if depth:
            bound, name = self._index(3), self._fresh()
            before = list(self.locals)
            self.locals.append((name, "u32", False))
            body = self._scoped(2, depth - 1)
            self.locals = before
            return ("count", bound, name, body)
        return self._simple(2)

    def _fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _declaration(self) -> Any:
        kind = self.random.choice(["u32", "u32", "S", "A", "R", *SHAPES])
        value = self.expr(kind, 3)
        constant = kind in SHAPES or self.random.random() < 0.5
        name = self._fresh()
        self.locals.append((name, kind, not constant))
        return ("declare", name, kind, constant, value)


class Writer:
    """Spells a program in CSL; names at the top begin with ``prefix``."""

    def __init__(self, made: Maker, prefix: str) -> None:
        self.prefix = prefix
        self.made = made

    def text(self) -> str:
        """Declarations and a function ``PREFIXrun`` that stores three results in ``out``."""
        x = self.prefix
        parts = [
            f"const {x}S = struct {{ a: u32, b: u32 }};",
            f"const {x}R = struct {{ s: {x}S, t: [3]u32, c: u32 }};",
            *(f"var {x}g{i}: u32 = {i + 3};" for i in range(3)),
            f"var {x}s0 = {x}S{{ .a = 7, .b = 8 }};",
            f"var {x}a0 = [3]u32{{ 1, 2, 4 }};",
            f"var {x}r0 = {x}R{{ .s = .{{ .a = 9, .b = 10 }}, .t = [3]u32{{ 5, 6, 7 }},"
            f" .c = 11 }};",
            f"var {x}ss = [3]{x}S{{ .{{ .a = 1, .b = 2 }}, .{{ .a = 3, .b = 4 }},"
            f" .{{ .a = 5, .b = 6 }} }};",
            f"fn {x}other(n: u32) u32 {{ {x}g1 += n; return n * 3; }}",
            f"var {x}fp: *const fn (u32) u32 = &{x}other;",
        ]
        for fn in self.made.functions:
            params = ", ".join(self._param(*p) for p in fn["params"])
            head = f"{'inline ' if fn['inline'] else ''}fn {x}{fn['name']}({params})"
            body = " ".join(map(self.statement, fn["body"]))
            parts.append(
                f"{head} {self.kind(fn['result'])} {{ {body} return {self.expr(fn['value'])}; }}"
            )
        body = "\n  ".join(map(self.statement, self.made.body))
        for position, value in enumerate(self.made.results):
            body += f"\n  {x}out[{position}] = {self.expr(value)};"
        parts.append(f"var {x}out = @zeros([3]u32);\nfn {x}run() void {{\n  {body}\n}}")
        return "\n".join(parts)

    def kind(self, kind: Any) -> str:
        """A type."""
        names = {"u32": "u32", "A": "[3]u32", "ptr": "*u32", "known": "u32"}
        return names[kind] if kind in names else self.prefix + kind

    def _param(self, name: str, kind: Any) -> str:
        if kind in SHAPES:
            return f"{name}: anytype"
        return f"{'comptime ' if kind == 'known' else ''}{name}: {self.kind(kind)}"

    def expr(self, node: Any) -> str:
        """One expression."""
        match node:
            case ("lit", n):
                return f"@as(u32, {n})"
            case ("path", steps):
                return self.path(steps)
            case ("shape", name):
                return str(name)
            case ("address", steps):
                return f"&{self.path(steps)}"
            case ("mod", value):
                return f"({self.expr(value)} % 3)"
            case ("bin" | "cmp", op, left, right):
                return f"({self.expr(left)} {op} {self.expr(right)})"
            case ("and" | "or" as op, left, right):
                return f"({self.expr(left)} {op} {self.expr(right)})"
            case ("if", test, then, other):
                return f"(if ({self.expr(test)}) {self.expr(then)} else {self.expr(other)})"
            case ("block", statement, value):
                return f"(blk: {{ {self.statement(statement)} break :blk {self.expr(value)}; }})"
            case ("switch", subject, arms):
                a, b, c = map(self.expr, arms)
                return f"(switch ({self.expr(subject)} % 3) {{ 0 => {a}, 1 => {b}, else => {c} }})"
            case ("member", value, name):
                return f"{self.expr(value)}.{name}"
            case ("element", value, n):
                return f"{self.expr(value)}[{n}]"
            case ("call", name, args):
                return f"{self.prefix}{name}({', '.join(map(self.expr, args))})"
            case ("callptr", value):
                return f"{self.prefix}fp({self.expr(value)})"
            case ("anon", fields):
                parts = [
                    self.expr(v) if isinstance(n, int) else f".{n} = {self.expr(v)}"
                    for n, v in fields
                ]
                return f".{{ {', '.join(parts)} }}"
            case ("S", (a, b)):
                return f"{self.prefix}S{{ .a = {self.expr(a)}, .b = {self.expr(b)} }}"
            case ("A", values):
                return f"[3]u32{{ {', '.join(map(self.expr, values))} }}"
            case ("R", (s, t, c)):
                parts = f".s = {self.expr(s)}, .t = {self.expr(t)}, .c = {self.expr(c)}"
                return f"{self.prefix}R{{ {parts} }}"
        raise AssertionError(node)

    def path(self, steps: tuple[Any, ...]) -> str:
        """A variable, or a part of one."""
        first = steps[0]
        top = first in ("g0", "g1", "g2", "s0", "a0", "r0", "ss")
        text = (self.prefix if top else "") + first
        for step in steps[1:]:
            if step == "*":
                text += ".*"
            elif isinstance(step, str):
                text += f".{step}"
            elif step[0] == "known":
                text += f"[{step[1]}]"
            else:
                text += f"[{self.expr(step)}]"
        return text

    def statement(self, node: Any) -> str:
        """One statement."""
        match node:
            case ("assign", steps, op, value):
                return f"{self.path(steps)} {op}= {self.expr(value)};"
            case ("declare", name, kind, constant, value):
                given = "" if kind in SHAPES else f": {self.kind(kind)}"
                return f"{'const' if constant else 'var'} {name}{given} = {self.expr(value)};"
            case ("pointer", which):
                target = "other" if which else "f0"
                return f"{self.prefix}fp = &{self.prefix}{target};"
            case ("when", test, then, other):
                return f"if ({self.expr(test)}) {self._block(then)} else {self._block(other)}"
            case ("each", subject, name, body):
                return f"for ({self.expr(subject)}) |{name}| {self._block(body)}"
            case ("count", bound, name, body):
                return f"for (@range(u32, {self.expr(bound)})) |{name}| {self._block(body)}"
        raise AssertionError(node)

    def _block(self, body: list[Any]) -> str:
        return f"{{ {' '.join(map(self.statement, body))} }}"
