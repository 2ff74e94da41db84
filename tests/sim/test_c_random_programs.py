"""Random programs: both machines agree on every bit and cycle (see conftest.py and twin.py)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from csl_runner import single

INTEGERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
FLOATS = ("f16", "f32")
BITS = {"u8": 8, "i8": 8, "u16": 16, "i16": 16, "u32": 32, "i32": 32, "u64": 64, "i64": 64,
        "f16": 16, "f32": 32}  # fmt: skip
COUNT = 6


class Expressions:
    """Random typed expressions over arrays ``v_TYPE`` of COUNT elements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, kind: str) -> str:
        """A literal of a type."""
        if kind in FLOATS:
            return repr(round(self.random.uniform(-9, 9), 3))
        low = 0 if kind[0] == "u" else -(1 << (BITS[kind] - 1))
        high = (1 << (BITS[kind] - (kind[0] == "i"))) - 1
        return str(self.random.choice([low, high, 0, 1, self.random.randint(low, high)]))

    def expr(self, kind: str, depth: int) -> str:
        """An expression of a type."""
        pick = self.random.random()
        if depth == 0 or pick < 0.15:
            index = self.random.choice([str(self.random.randrange(COUNT)), "n % 6"])
            return f"v_{kind}[{index}]"
        if pick < 0.25:
            return f"@as({kind}, {self.value(kind)})"
        if pick < 0.45:
            other = self.random.choice(INTEGERS + FLOATS)
            return f"@as({kind}, {self.expr(other, depth - 1)})"
        if pick < 0.55:
            same = [k for k in BITS if BITS[k] == BITS[kind]]
            return f"@bitcast({kind}, {self.expr(self.random.choice(same), depth - 1)})"
        left, right = self.expr(kind, depth - 1), self.expr(kind, depth - 1)
        if kind in FLOATS:
            return f"({left} {self.random.choice('+-*/')} {right})"
        operator = self.random.choice(["+", "-", "*", "&", "|", "^", "<<", ">>", "/", "%"])
        if operator in ("<<", ">>"):
            return f"({left} {operator} @as(u16, {self.random.randrange(BITS[kind])}))"
        if operator in "/%":
            return f"({left} {operator} @as({kind}, {self.random.choice([3, 7, 100])}))"
        return f"({left} {operator} {right})"

    def condition(self, depth: int) -> str:
        """A comparison, perhaps two of them."""
        kind = self.random.choice(INTEGERS + FLOATS)
        sign = self.random.choice(["<", "<=", "==", "!=", ">", ">="])
        text = f"({self.expr(kind, depth)} {sign} {self.expr(kind, depth)})"
        if self.random.random() < 0.3:
            text = f"({text} {self.random.choice(['and', 'or'])} {self.condition(0)})"
        return text

    def statement(self, depth: int) -> str:
        """An assignment, a branch or a short loop."""
        kind = self.random.choice(INTEGERS + FLOATS)
        index = self.random.randrange(COUNT)
        assign = f"v_{kind}[{index}] = {self.expr(kind, 3)};"
        pick = self.random.random()
        if depth and pick < 0.2:
            inner = self.statement(depth - 1)
            return f"if ({self.condition(1)}) {{ {inner} }} else {{ {self.statement(depth - 1)} }}"
        if depth and pick < 0.35:
            leave = f"if ({self.condition(0)}) {{ {self.random.choice(['break', 'continue'])}; }}"
            return f"for (@range(u16, 4)) |i| {{ n += 1; {leave} {self.statement(depth - 1)} }}"
        return assign


@pytest.mark.parametrize("seed", range(6))
def test_scalar_code(tmp_path: Path, seed: int) -> None:
    made = Expressions(seed)
    arrays = "\n".join(
        f"var v_{k} = [{COUNT}]{k} {{ {', '.join(made.value(k) for _ in range(COUNT))} }};"
        for k in BITS
    )
    body = "\n  ".join(made.statement(2) for _ in range(40))
    pe = f"""
{arrays}
var n: u16 = 0;
fn run() void {{
  {body}
  sys.unblock_cmd_stream();
}}
comptime {{ @export_symbol(run); }}
"""
    program = single(tmp_path, pe, run="fn()void")
    program.launch("run")
    assert program.machine.tasks_run == 1


HALF = ("faddh", "fsubh", "fmulh", "fmaxh")
SINGLE = ("fadds", "fsubs", "fmuls", "fmaxs")
WORDS = ("add16", "sub16", "and16", "or16", "xor16", "sll16", "slr16", "sar16")


def vector_statement(rng: random.Random, number: int) -> tuple[str, str]:
    """Declarations and a call with random shapes; they may overlap."""
    family = rng.choice([HALF, SINGLE, WORDS])
    kind = {HALF: "f16", SINGLE: "f32", WORDS: "u16"}[family]
    name, n = rng.choice(family), rng.randrange(1, 9)
    declared, operands = [], []
    for part in range(3):
        stride, start = rng.choice([0, 1, 1, 2, 3]), rng.randrange(4)
        access = f"m_{kind}[{stride} * i + {start}]"
        if part and rng.random() < 0.2:
            operands.append("3" if kind == "u16" else "1.5")
            continue
        dsd = f"d{number}_{part}"
        declared.append(
            f"const {dsd} = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> {access} }});"
        )
        operands.append(dsd)
    if rng.random() < 0.3:
        accumulate = {"f16": "fmach", "f32": "fmacs"}.get(kind)
        if accumulate and all(o.startswith("d") for o in operands):
            return "\n".join(declared), f"@{accumulate}({', '.join(operands)}, 0.75);"
    return "\n".join(declared), f"@{name}({', '.join(operands)});"


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("seed", range(3))
def test_vector_code(tmp_path: Path, seed: int, arch: str) -> None:
    rng = random.Random(seed)
    made = [vector_statement(rng, i) for i in range(60)]
    pe = f"""
var m_u16 = [32]u16 {{ {", ".join(str(rng.randrange(1 << 16)) for _ in range(32))} }};
var m_f16 = [32]f16 {{ {", ".join(repr(round(rng.gauss(0, 3), 2)) for _ in range(32))} }};
var m_f32 = [32]f32 {{ {", ".join(repr(round(rng.gauss(0, 3), 4)) for _ in range(32))} }};
{chr(10).join(d for d, _ in made)}
fn run() void {{
  {chr(10).join(c for _, c in made)}
  sys.unblock_cmd_stream();
}}
comptime {{ @export_symbol(run); }}
"""
    program = single(tmp_path, pe, arch, run="fn()void")
    program.launch("run")
    assert program.machine.tasks_run == 1
