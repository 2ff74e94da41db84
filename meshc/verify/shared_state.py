"""What phases of one program agree on: where each core keeps the state that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshc.ir.batch import request_axis
from meshc.ir.module import Buffer, Module, Param
from meshc.ir.types import BufferType, Type
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def check_shared_state(phases: Mapping[str, Module]) -> None:
    """Compare types, layouts included, and the mesh of every state that several phases have. A
    phase may have that of one request, and another one that of all, one behind another.

    Raises ``state-differs``: a phase would read other elements than the one before has left.
    """
    seen: dict[str, tuple[str, Value]] = {}
    for phase, module in phases.items():
        for name, state in _states(module).items():
            other, known = seen.setdefault(name, (phase, state))
            theirs = phases[other]
            kinds = known.type, state.type
            alike = kinds[0] == kinds[1] or _of_one(theirs, known) == _of_one(module, state)
            if not alike or theirs.mesh != module.mesh:
                fail(
                    "state-differs",
                    f"{other} and {phase} disagree about where %{name} lies",
                    notes=[
                        f"{other}: {kinds[0]} on {theirs.mesh!r}",
                        f"{phase}: {kinds[1]} on {module.mesh!r}",
                    ],
                )


def _states(module: Module) -> dict[str, Value]:
    """Each state by name."""
    params = [p for f in module.functions for p in f.params]
    holders: list[Param | Buffer] = [*params, *module.buffers]
    return {h.value.name: h.value for h in holders if h.role == "state"}


def _of_one(module: Module, state: Value) -> Type:
    """The type of what one request has of ``state``, if requests go one behind another."""
    axis, kind = request_axis(module, state), state.type
    if axis is None or not isinstance(kind, BufferType):
        return kind
    return replace(kind, shape=(*kind.shape[:axis], *kind.shape[axis + 1 :]))
