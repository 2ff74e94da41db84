"""Values: what ops take and give. Identity matters, so two values are never equal."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.types import Type


@dataclass(eq=False)
class Value:
    """A named result, argument or buffer; ``name`` is its text without the percent sign."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"%{self.name}"
