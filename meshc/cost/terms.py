"""The parts of a predicted time, by what it is spent on."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Cost:
    """Time on the critical path, in cycles of a mesh or seconds of a GPU.

    ``compute``: arithmetic, and reading its operands from a core's own memory. ``transfer``: hops
    and words (or bytes) on links and from global memory. ``stages``: routing stages, relays and
    round trips, which grow with the cores in a chain. ``waits``: for transfers that work hides only
    in part, for barriers, and for memory to answer. ``overhead``: starts of operations, loops and
    task switches.
    """

    compute: float = 0.0
    transfer: float = 0.0
    stages: float = 0.0
    waits: float = 0.0
    overhead: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.transfer + self.stages + self.waits + self.overhead

    def parts(self) -> dict[str, float]:
        """The parts by name."""
        return {name: getattr(self, name) for name in MECHANISMS}

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.compute + other.compute,
            self.transfer + other.transfer,
            self.stages + other.stages,
            self.waits + other.waits,
            self.overhead + other.overhead,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            self.compute * times,
            self.transfer * times,
            self.stages * times,
            self.waits * times,
            self.overhead * times,
        )

    __rmul__ = __mul__


NOTHING = Cost()
MECHANISMS = tuple(part.name for part in fields(Cost))
