"""Shared memory of a block: named parts at offsets that the compiler computes."""

from __future__ import annotations

from dataclasses import dataclass, field

ALIGNMENT = 128
MOST_BYTES = 232_448  # of a block on sm_90


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
