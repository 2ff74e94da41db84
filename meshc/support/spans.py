"""Places in source text, so that every message can point at what the user wrote."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """One input text. ``name`` is what messages show (a path, or ``<stdin>``)."""

    name: str
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """The 1-based line ``number`` without its line end; empty when past the end."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


@dataclass(frozen=True)
class Span:
    """A stretch of one line of a source: 1-based ``line`` and ``column``, ``length`` >= 1."""

    source: Source
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"
