"""The cycle model: how long operations take. Constants are in ``costs.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import gcd
from typing import Any

from meshc.sim.descriptors import Mem
from meshc.sim.vector_ops import OpSpec


@dataclass(frozen=True)
class Costs:
    """Cycles of the machine of one architecture; ``lanes`` is elements per cycle by kind."""

    memory: int
    fabric_out: int
    fabric_in: int
    load_dsr: int
    task: int
    data_task: int
    print_call: int
    hop: int
    ramp: int
    relay: int
    configure: int
    map_call: int
    period: int
    stay_every: int
    lanes: dict[str, int]
    write_every: dict[str, int]
    output_depth: tuple[int, ...]
    input_depth: int
    host_depth: int

    def vector_cycles(self, spec: OpSpec, sources: list[Any], dst: Any, n: int) -> int:
        """Cycles for ``n`` elements between memory operands, without the set-up."""
        lanes = self.lanes[spec.kind]
        memory = [s for s in sources if isinstance(s, Mem) and not s.scalar]
        for operand in (*memory, dst):
            if isinstance(operand, Mem) and not operand.scalar:
                lanes = min(lanes, _stride_lanes(operand, lanes))
        cycles = -(-n // lanes)
        if any(operand.esize != 4 for operand in memory):
            return cycles
        lost = _reads_that_meet(memory, self.period, n)
        if any(_stays_in_its_bank(dst, source) for source in memory):
            lost = n + n // self.stay_every + (n if _takes_turns(memory) else 0)
        every = self.write_every.get(spec.kind, 0) if isinstance(dst, Mem) else 0
        return cycles + (lost or (n // every if every else 0))


def _reads_that_meet(memory: list[Mem], period: int, n: int) -> int:
    """Steps in which the first two sources lie in one bank group; two reads share no group.

    Groups repeat every ``period`` bytes, so that elements of unequal strides meet in some steps
    only. A source that does not move is read once.
    """
    if len(memory) < 2:
        return 0
    first, second = pace(memory[0]), pace(memory[1])
    if not first or not second:
        return 0
    apart, drift = memory[0].addr - memory[1].addr, first - second
    every = period // gcd(drift, period)
    for step in range(min(every, n)):
        if (apart + step * drift) % period == 0:
            return -(-(n - step) // every)
    return 0


def _stays_in_its_bank(dst: Any, source: Mem) -> bool:
    """Whether results go to the bank that the same source is read from, in every step."""
    return (
        isinstance(dst, Mem)
        and not dst.scalar
        and dst.addr == source.addr
        and pace(dst) == pace(source)
        and pace(dst) != 0
        and pace(dst) % 16 == 0
    )


def _takes_turns(memory: list[Mem]) -> bool:
    """Whether two sources have strides of the slowest class, multiples of eight words."""
    return len(memory) > 1 and all(pace(m) and pace(m) % 32 == 0 for m in memory)


def pace(mem: Mem) -> int:
    """Bytes from an element to the next, in the innermost of its dims."""
    return mem.dims[-1][1] if mem.dims else mem.stride


def _stride_lanes(operand: Mem, lanes: int) -> int:
    """The documented stride rule, in 16-bit words modulo the eight banks."""
    stride = operand.stride // 2 if operand.esize <= 2 else operand.stride // 4
    if stride in (0, 1) or stride % 8 in (2, 3, 5, 6):
        return lanes
    return 1 if stride % 8 == 0 else 2


@cache
def costs_of(arch: str) -> Costs:
    """The cycle model of ``wse2`` or ``wse3``."""
    path = resources.files("meshc.sim.machine") / "costs.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    setup, fabric = table["setup"], table["fabric"]
    column = 0 if arch == "wse2" else 1
    return Costs(
        setup["memory"],
        setup["fabric_out"],
        setup["fabric_in"],
        setup["load_dsr"],
        setup["task"],
        setup["data_task"][column],
        setup["print"],
        fabric["hop"],
        fabric["ramp"],
        fabric["relay"],
        fabric["configure"],
        table["map"]["call"],
        table["banks"]["period"],
        table["banks"]["stay_every"],
        {kind: lanes[column] for kind, lanes in table["lanes"].items()},
        table["write_every"],
        tuple(table["queues"][f"output_{arch}"]),
        table["queues"][f"input_{arch}"],
        table["queues"]["host"],
    )
