"""What a run left on the fabric, PE by PE: memory, busy cycles, words over links, routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshc.sim.route_configs import EAST, NORTH, RAMP, SOUTH, WEST

_LINKS = (EAST, WEST, NORTH, SOUTH)
_PORTS = (RAMP, *_LINKS)
"""In the order of their bits."""


def fabric_facts(machine: Any) -> dict[str, Any]:
    """The state of the fabric of a ``machine`` that has run, as JSON values (``docs/view.md`` says
    what each is): numbers of PEs row by row, None where there is none, and each color's routes in
    their present state."""
    pes, program = dict(machine.pes), machine.program
    load, routers = machine.fabric.link_load, machine.fabric.routers

    def rows(value: Callable[[int, int], int | None]) -> list[list[int | None]]:
        return [
            [value(x, y) if (x, y) in pes else None for x in range(program.width)]
            for y in range(program.height)
        ]

    def routes(color: int) -> list[list[int | None]]:
        return rows(lambda x, y: _route(routers[x, y, color]) if (x, y, color) in routers else None)

    return {
        "columns": program.width,
        "rows": program.height,
        "arch": program.arch,
        "cycles": machine.cycles,
        "tasks": machine.tasks_run,
        "memory": rows(lambda x, y: sum(symbol.size for symbol in pes[x, y].program.symbols)),
        "busy": rows(lambda x, y: pes[x, y].cycles_busy),
        "words": rows(lambda x, y: sum(load.get((x, y, link), 0) for link in _LINKS)),
        "routes": [
            {"color": color, "rows": routes(color)}
            for color in sorted({color for _, _, color in routers})
        ],
    }


def _route(router: Any) -> int:
    """The inputs that a router takes now in the low five bits, its outputs in those above."""
    return _bits(router.rx()) + (_bits(router.tx()) << len(_PORTS))


def _bits(ports: Iterable[int]) -> int:
    return sum(1 << _PORTS.index(port) for port in set(ports))
