"""Traces of a finished run."""

from typing import Any

from meshc.sim.host.elf_runner import CSELFRunner


def read_trace(runner: CSELFRunner, x: int, y: int, key: str) -> list[Any]:
    """The values that a PE (fabric coordinates) traced under ``key``."""
    return runner.read_trace(x, y, key)
