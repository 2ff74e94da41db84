"""A PE of the C machine as Python sees it: the parts that hosts, libraries and reports use."""

from __future__ import annotations

from typing import Any, Protocol

from meshc.sim.cgen import structs
from meshc.sim.machine.cycle_model import Costs
from meshc.sim.program import PeProgram


class Owner(Protocol):
    """What a PE uses of its machine."""

    library: Any

    @property
    def costs(self) -> Costs: ...
    def place(self, pe: CPe, number: int) -> str: ...


class CPe:
    """Attributes are those of :class:`meshc.sim.machine.pe.Pe`; ``head`` lies in C memory.

    ``memory`` is an array of bytes that belongs to Python, so that views of it outlive a machine.
    """

    def __init__(
        self, machine: Owner, program: PeProgram, number: int, address: int, names: list[str],
        memory: Any,
    ) -> None:  # fmt: skip
        self.machine, self.program, self.number = machine, program, number
        self.address = address
        self.head = structs.Pe.from_address(address)
        self.x, self.y = int(self.head.x), int(self.head.y)
        self.names = names
        self.mem = memoryview(memory).cast("B")
        self.log = ""
        self.traces: dict[str, list[tuple[str, Any]]] = {}

    @property
    def costs(self) -> Costs:
        """The cycle model."""
        return self.machine.costs

    @property
    def t(self) -> int:
        """The local time of the code that runs."""
        return int(self.head.t)

    @t.setter
    def t(self, time: int) -> None:
        self.head.t = time

    @property
    def busy_until(self) -> int:
        """When the latest task ended."""
        return int(self.head.busy_until)

    @property
    def cycles_busy(self) -> int:
        """Cycles spent in tasks."""
        return int(self.head.cycles_busy)

    @property
    def current_name(self) -> str:
        """The task that runs or ran last."""
        return self.names[int(self.head.current)]

    @property
    def unblocked(self) -> int:
        """How often the PE has unblocked the command stream."""
        return int(self.head.unblocked)

    @unblocked.setter
    def unblocked(self, count: int) -> None:
        while self.head.unblocked < count:
            self.machine.library.csl_host_unblock(self.address)

    def activate_later(self, number: int, time: int) -> None:
        """Activate a local task at ``time``."""
        self.machine.library.csl_activate_later(self.address, number, time)
