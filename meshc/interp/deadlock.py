"""The report of a run in which no core can go on: who waits for whom, and the shortest cycle of
waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from meshc.interp.fifos import Fabric
from meshc.interp.steps import Core
from meshc.support.diagnostics import fail
from meshc.support.graphs import shortest_cycle

_SHOWN = 8


def report_deadlock(cores: Sequence[Core], ended: set[int], fabric: Fabric) -> NoReturn:
    """Fail with ``interp-deadlock``; some core is neither ended nor able to go on."""
    stuck = [core for core in cores if core.index not in ended]
    notes = [_wait_text(core, cores, ended, fabric) for core in stuck[:_SHOWN]]
    if len(stuck) > _SHOWN:
        notes.append(f"and {len(stuck) - _SHOWN} more cores wait")
    waits = [(core.index, s) for core in stuck for s in _senders(core, fabric) if s not in ended]
    if cycle := shortest_cycle(waits):
        names = [cores[one].name for one in (*cycle, cycle[0])]
        notes.append("the waits form a cycle: " + " -> ".join(names))
    first = stuck[0].waits_for
    fail(
        "interp-deadlock",
        f"no core can go on: {len(stuck)} of {len(cores)} wait for messages that never come",
        first.op.span if first else None,
        notes,
        help="start every send before any wait that needs it, under a guard that matches its recv",
    )


def _senders(core: Core, fabric: Fabric) -> tuple[int, ...]:
    assert core.waits_for is not None
    return fabric.routes[core.waits_for.op.channel].senders[core.index]


def _wait_text(core: Core, cores: Sequence[Core], ended: set[int], fabric: Fabric) -> str:
    assert core.waits_for is not None
    op = core.waits_for.op
    place = f"{op.span.line}: " if op.span else ""
    senders = [
        cores[s].name + (" (which has ended)" if s in ended else "")
        for s in _senders(core, fabric)[:_SHOWN]
    ]
    return f"{core.name} waits for {place}{op.NAME} @{op.channel} from {' or '.join(senders)}"
