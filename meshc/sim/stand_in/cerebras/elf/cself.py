"""Where the PEs of a compiled program are."""

from collections.abc import Iterator
from typing import Any

from meshc.sim.host.elf_runner import CSELFRunner


class ELFMemory:
    """The files of a program."""

    def __init__(self, *paths: Any) -> None:
        self._runner = CSELFRunner(paths)

    def iter_coordinates(self) -> Iterator[tuple[int, int]]:
        """The fabric coordinates of all PEs."""
        return iter(self._runner.coordinates())
