"""What a pass is: a frozen dataclass whose fields are its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class Pass:
    """Base of all passes.

    ``REQUIRES``, ``ESTABLISHES`` and ``INVALIDATES`` name facts, never other passes; ``LEVELS``
    are the levels a pass accepts. ``run`` returns the module it edited, or a new one when it
    lowers to the next level; the manager keeps the module's facts.
    """

    NAME: ClassVar[str] = ""
    LEVELS: ClassVar[tuple[str, ...]] = ("graph", "mesh", "tile")
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        """Do the work; raise :class:`meshc.support.diagnostics.MeshcError` when it cannot."""
        raise NotImplementedError
