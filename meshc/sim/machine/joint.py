"""The functions of the closed libraries in which PEs act together: collectives and a tally."""

from __future__ import annotations

from meshc.sim.machine.pe import Pe


def collective(
    pe: Pe, dim: int, kind: int, root: int, send: int, receive: int, count: int, task: int
) -> None:  # fmt: skip
    """Called by the library module."""
    name = ("broadcast", "scatter", "gather", "reduce")[kind]
    pe.machine.collectives.call(pe, dim, name, root, send, receive, count, task)


def tally_signal(pe: Pe, amount: int, done: int, addr: int, task: int, goal: int) -> None:
    """Called by the library module."""
    pe.machine.collectives.signal(pe, amount, done, addr, task, goal)
