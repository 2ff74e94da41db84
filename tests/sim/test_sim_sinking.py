"""Descriptors that are made where they are used: programs write what they wrote without that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from csl_runner import function

from meshc.sim import csl_compiler

HEAD = """
var v = @zeros([200]u32); var i: u16 = 1; var way: u16 = 0;
const d0 = @get_dsd(mem1d_dsd, .{ .base_address = &v, .extent = 2 });
fn change() void { i += 3; }
"""


class Maker:
    """Writes a random body: descriptors made of what changes, used in choices, loops and after."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.made = 0

    def body(self) -> str:
        written = self.block(3, [])
        return f"var k: u16 = i;\n{written}\nfor (@range(u16, 200)) |n| {{ out[n] = v[n]; }}"

    def block(self, depth: int, known: list[str]) -> str:
        known = list(known)
        return "\n".join(self.statement(depth, known) for _ in range(self.dice.randint(2, 6)))

    def statement(self, depth: int, known: list[str]) -> str:
        kind = self.dice.choice(["make", "make", "use", "use", "use", "change", "if", "for"])
        if kind == "make":
            self.made += 1
            base = self.dice.choice(["d0", "d0", *known])
            known.append(name := f"d{self.made}")
            moved = f"@increment_dsd_offset({base}, @as(i16, {{}}), u32)"
            how = self.dice.choice(["@set_dsd_base_addr(d0, &v[{}])", moved])
            at = self.dice.choice(["k", "i", "(k + i)", "(i & 7)"])
            word = self.dice.choice(["const", "var"])
            return f"{word} {name} = {how.format(f'{at} % 11')};"
        if kind == "use" and known:
            return f"@mov32({self.dice.choice(known)}, {self.dice.randint(1, 999)});"
        if kind == "if" and depth:
            cond = self.dice.choice(["k > 4", "i % 3 == 1", "way == 0", "k < i"])
            then, other = self.block(depth - 1, known), self.block(depth - 1, known)
            return f"if ({cond}) {{ {then} }} else {{ {other} }}"
        if kind == "for" and depth:
            return f"for (@range(u16, 2)) |_| {{ {self.block(depth - 1, known)} }}"
        return self.dice.choice(["k += 2;", "i = k + 1;", "change();", "way = 1 - way;"])


def run(folder: Path, seed: int) -> list[int]:
    folder.mkdir()
    return list(function(folder, Maker(seed).body(), "u32", 200, head=HEAD))


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_random_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    seeds = range(first, first + 4)
    moved = [run(tmp_path / f"moved{seed}", seed) for seed in seeds]
    monkeypatch.setattr(csl_compiler, "sink", lambda function: None)
    assert moved == [run(tmp_path / f"kept{seed}", seed) for seed in seeds]
