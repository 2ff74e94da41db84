"""Shared memory of a block: named parts at offsets that the compiler computes."""

from __future__ import annotations

from dataclasses import dataclass, field

ALIGNMENT = 128


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
