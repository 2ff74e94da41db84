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
    """``bytes`` at ``at``, called ``name`` in the kernel; ``within`` the memory of another part."""

    name: str
    at: int
    bytes: int
    note: str = ""
    within: str = ""


@dataclass
class Arena:
    """Parts one after the other, each at a multiple of 128 bytes."""

    parts: list[Part] = field(default_factory=list)

    def add(self, name: str, count: int, note: str = "", within: str = "") -> None:
        """Another part of ``count`` bytes: behind all others, or, if it is to lie ``within`` one,
        behind those that do so already."""
        at = self.bytes
        if within:
            (outer,) = (part.at for part in self.parts if part.name == within)
            at = max([outer, *(_end(part) for part in self.parts if part.within == within)])
        self.parts.append(Part(name, at, count, note, within))

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return max((_end(part) for part in self.parts), default=0)


def _end(part: Part) -> int:
    return -(-(part.at + part.bytes) // ALIGNMENT) * ALIGNMENT
