"""The cycle model: how long operations take. Constants are in ``costs.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
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
    timestamp: int
    print_call: int
    hop: int
    ramp: int
    relay: int
    configure: int
    map_call: int
    lanes: dict[str, int]
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
        if len(memory) >= 2 and memory[0].esize == 4 and same_banks(memory[0], memory[1]):
            cycles += n
        return cycles


def same_banks(a: Mem, b: Mem) -> bool:
    """Whether two 32-bit sources fall in the same bank group at every step."""
    return (a.addr - b.addr) % 8 == 0 and a.stride == b.stride and a.stride != 0


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
        setup["timestamp"],
        setup["print"],
        fabric["hop"],
        fabric["ramp"],
        fabric["relay"],
        fabric["configure"],
        table["map"]["call"],
        {kind: lanes[column] for kind, lanes in table["lanes"].items()},
        tuple(table["queues"][f"output_{arch}"]),
        table["queues"][f"input_{arch}"],
        table["queues"]["host"],
    )
