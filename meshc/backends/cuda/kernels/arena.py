"""Shared memory of a block: named parts at offsets that the compiler computes."""

from __future__ import annotations

from dataclasses import dataclass, field

ALIGNMENT = 128
CORE_BYTES = 233_472  # shared memory of a multiprocessor on sm_90
RESERVED_BYTES = 1024  # of it, the driver takes for each block


def most_bytes(resident: int = 1) -> int:
    """Shared memory of a block where ``resident`` of them share a multiprocessor."""
    return CORE_BYTES // resident // ALIGNMENT * ALIGNMENT - RESERVED_BYTES


@dataclass(frozen=True)
class Part:
    """``bytes`` at ``at``, called ``name`` in the kernel."""

    name: str
    at: int
    bytes: int
    note: str = ""


@dataclass
class Arena:
    """Parts one after the other, each at a multiple of 128 bytes."""

    parts: list[Part] = field(default_factory=list)

    def add(self, name: str, count: int, note: str = "") -> None:
        """Another part of ``count`` bytes."""
        self.parts.append(Part(name, self.bytes, count, note))

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        if not self.parts:
            return 0
        last = self.parts[-1]
        return -(-(last.at + last.bytes) // ALIGNMENT) * ALIGNMENT
