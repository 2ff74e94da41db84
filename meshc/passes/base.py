"""What a pass is: a frozen dataclass whose fields are its options."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import ClassVar

from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics

OptionValue = int | float | bool | str | tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.x-]*\Z")


@dataclass(frozen=True)
class Pass:
    """Base of all passes.

    ``REQUIRES``, ``ESTABLISHES`` and ``INVALIDATES`` name facts, never other passes; ``LEVELS``
    are the levels a pass accepts. One that ``ROUNDS`` leaves a module that computes with other
    numbers, so that nobody holds it against the one before. ``run`` returns the module it edited,
    or a new one when it lowers to the next level; the manager keeps the module's facts.
    """

    NAME: ClassVar[str] = ""
    LEVELS: ClassVar[tuple[str, ...]] = ("graph", "mesh", "tile", "task")
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()
    ROUNDS: ClassVar[bool] = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        """Do the work; raise :class:`meshc.support.diagnostics.MeshcError` when it cannot."""
        raise NotImplementedError

    def options(self) -> dict[str, OptionValue]:
        """Every option by the name a person types, in declared order."""
        return {option_name(f.name): getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        """The spec text, such as ``partition{grid=4x4}``; options at their defaults are left out.

        :func:`meshc.passes.registry.parse_pipeline` reads it back to an equal pass.
        """
        changed = {
            option_name(f.name): getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        body = ",".join(f"{name}={option_text(value)}" for name, value in changed.items())
        return f"{self.NAME}{{{body}}}" if body else self.NAME


def option_name(field_name: str) -> str:
    """A field's name as a person types it: ``group_size`` is ``group-size``."""
    return field_name.replace("_", "-")


def option_text(value: OptionValue) -> str:
    """Text of one option value; strings that are no single word are quoted."""
    if isinstance(value, tuple):
        return "[" + ",".join(map(option_text, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _BARE.match(value) else json.dumps(value)
    return repr(value)
