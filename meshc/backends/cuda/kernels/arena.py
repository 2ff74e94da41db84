"""Shared memory of a block: named parts at offsets that the compiler computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.cuda.blocks import OVERLAPPING

ALIGNMENT = 128
CORE_BYTES = 233_472  # shared memory of a multiprocessor on sm_90
RESERVED_BYTES = 1024  # of it, the driver takes for each block


def most_bytes(resident: int = 1) -> int:
    """Shared memory of a block where ``resident`` of them share a multiprocessor."""
    return CORE_BYTES // resident // ALIGNMENT * ALIGNMENT - RESERVED_BYTES


def limits(resident: int = 1) -> tuple[int, ...]:
    """Bytes that a block may have: :func:`meshc.analysis.cuda.blocks.memory_limits` of sm_90."""
    return tuple(map(most_bytes, dict.fromkeys((max(resident, OVERLAPPING), resident))))


@dataclass(frozen=True)
class Part:
    """``bytes`` at ``at``, called ``name`` in the kernel; ``within`` the memory of another part."""

    name: str
    at: int
    bytes: int
    note: str = ""

    @property
    def end(self) -> int:
        """Where the next part may begin."""
        return _aligned(self.at + self.bytes)


@dataclass
class Arena:
    """Parts, each at a multiple of 128 bytes."""

    parts: list[Part] = field(default_factory=list)

    def add(self, name: str, count: int, note: str = "", at: int | None = None) -> Part:
        """A part of ``count`` bytes at ``at``, where others may be too, or behind all."""
        part = Part(name, self.bytes if at is None else at, count, note)
        self.parts.append(part)
        return part

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return max((part.end for part in self.parts), default=0)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
