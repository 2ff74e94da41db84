"""The cycle model: how long operations take. Constants are those of a timing model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any

from meshc.sim import timing
from meshc.sim.descriptors import Mem
from meshc.sim.vector_ops import OpSpec


@dataclass(frozen=True)
class Costs:
    """Cycles of the machine of one architecture; ``lanes`` is elements per cycle by kind."""

    memory: int
    fabric_out: int
    fabric_in: int
    rewritten: int
    drained: int
    task: int
    data_task: int
    reopen: int
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
    in_place_every: dict[str, int]
    row: dict[str, int]
    output_depth: tuple[int, ...]
    input_depth: int
    host_depth: int

    def vector_cycles(self, spec: OpSpec, sources: list[Any], dst: Any, n: int) -> int:
        """Cycles for ``n`` elements between memory operands, without the set-up."""
        lanes, rows = self.lanes[spec.kind], 0
        memory = [s for s in sources if isinstance(s, Mem) and not s.scalar]
        for operand in (*memory, dst):
            if isinstance(operand, Mem) and not operand.scalar:
                lanes = min(lanes, _stride_lanes(operand, lanes))
                rows = max(rows, _rows(operand, n))
        halved = bool(rows) and lanes > 1
        if halved:
            lanes //= 2
        cycles = rows * self.row.get(spec.kind, 1) + -(-n // lanes)
        if any(operand.esize != 4 for operand in memory):
            every = self.write_every.get(spec.kind, 0) if isinstance(dst, Mem) else 0
            return cycles + (cycles // every if every else 0)
        lost = 0 if halved else _reads_that_meet(memory, self.period, n)
        if any(_stays_in_its_bank(dst, source) for source in memory):
            lost = n + n // self.stay_every + (n if lost == n else 0)
        if lost or not isinstance(dst, Mem):
            return cycles + lost
        every = self.write_every.get(spec.kind, 0)
        if not every and not rows and any(_in_place(dst, source) for source in memory):
            every = self.in_place_every.get(spec.kind, 0)
        return cycles + (n // every if every else 0)


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
    return isinstance(dst, Mem) and _in_place(dst, source) and pace(dst) % 16 == 0


def _in_place(dst: Mem, source: Mem) -> bool:
    """Whether results are written over the elements of a source, which moves."""
    same = dst.addr == source.addr and pace(dst) == pace(source)
    return same and not dst.scalar and pace(dst) != 0


def pace(mem: Mem) -> int:
    """Bytes from an element to the next, in the innermost of its dims."""
    return mem.dims[-1][1] if mem.dims else mem.stride


def _rows(operand: Mem, n: int) -> int:
    """Rows that ``n`` elements of an operand of several dims take; 0 for one of a single dim."""
    if len(operand.dims) < 2:
        return 0
    return -(-n // max(1, operand.dims[-1][0]))


def _stride_lanes(operand: Mem, lanes: int) -> int:
    """The documented stride rule, in 16-bit words modulo the eight banks."""
    stride = operand.stride // 2 if operand.esize <= 2 else operand.stride // 4
    if stride in (0, 1) or stride % 8 in (2, 3, 5, 6):
        return lanes
    return 1 if stride % 8 == 0 else 2


@cache
def costs_of(arch: str, model: str = timing.DEFAULT) -> Costs:
    """The cycle model of ``wse2`` or ``wse3``."""
    tables = {name: timing.numbers(model, arch, name) for name in timing.entries(model)}
    setup, fabric, banks, queues = (tables[name] for name in ("setup", "fabric", "banks", "queues"))
    return Costs(
        setup["memory"],
        setup["fabric_out"],
        setup["fabric_in"],
        setup["rewritten"],
        setup["drained"],
        setup["task"],
        setup["data_task"],
        setup["reopen"],
        setup["print"],
        fabric["hop"],
        fabric["ramp"],
        fabric["relay"],
        fabric["configure"],
        tables["map"]["call"],
        banks["period"],
        banks["stay_every"],
        tables["lanes"],
        tables["write_every"],
        tables["in_place_every"],
        tables["row"],
        tuple(queues["output"]),
        queues["input"],
        queues["host"],
    )
