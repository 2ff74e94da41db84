"""What phases of one program agree on: where each core keeps the state that they share."""

from __future__ import annotations

from collections.abc import Mapping

from meshc.ir.mesh import Mesh
from meshc.ir.module import Buffer, Module, Param
from meshc.ir.types import Type
from meshc.support.diagnostics import fail


def check_shared_state(phases: Mapping[str, Module]) -> None:
    """Compare types, layouts included, and the mesh of every state that several phases have.

    Raises ``state-differs``: a phase would read other elements than the one before has left.
    """
    seen: dict[str, tuple[str, Type, Mesh | None]] = {}
    for phase, module in phases.items():
        for name, kind in _states(module).items():
            other, theirs, mesh = seen.setdefault(name, (phase, kind, module.mesh))
            if (theirs, mesh) != (kind, module.mesh):
                fail(
                    "state-differs",
                    f"{other} and {phase} disagree about where %{name} lies",
                    notes=[f"{other}: {theirs} on {mesh!r}", f"{phase}: {kind} on {module.mesh!r}"],
                )


def _states(module: Module) -> dict[str, Type]:
    """The type of each state by name."""
    params = [p for f in module.functions for p in f.params]
    holders: list[Param | Buffer] = [*params, *module.buffers]
    return {h.value.name: h.value.type for h in holders if h.role == "state"}
