"""Ops in which a check found nothing wrong, so that they are looked at once.

A module is verified behind every pass, and most passes leave most ops as they are. What is kept of
an op is all that its check depended on, in a form that editing the op does not change.
"""

from __future__ import annotations

from collections.abc import Set
from weakref import WeakKeyDictionary

from meshc.ir.core import Op, attribute_names
from meshc.ir.module import Module
from meshc.ir.values import Value
from meshc.ir.viewcheck import coordinates_of
from meshc.ir.views import View
from meshc.support.shared import shared

State = tuple[object, ...]

_RIGHT: WeakKeyDictionary[Op, State] = WeakKeyDictionary()


class Checked:
    """What is known of ops without regions in ``module``, as it is now."""

    def __init__(self, module: Module) -> None:
        axes = tuple(module.mesh.parts) if module.mesh else ()
        channels = tuple(c.name for c in module.channels)
        extents = tuple(module.dims.items())
        self.around = _around(module.level, extents, axes, coordinates_of(module), channels)

    def state_of(self, op: Op, names: frozenset[str]) -> State:
        """All that a check of ``op`` looks at, where ``names`` are loops and scalars, but for which
        values are in scope."""
        given = (getattr(op, name) for name in attribute_names(type(op)))
        return (
            self.around,
            names,
            *op.operands,
            *(v.type for v in _read(op)),
            *(v.type for v in op.results),
            len(op.results),
            op.when,
            *(tuple(v.items()) if isinstance(v, dict) else v for v in given),
        )

    def is_right(self, op: Op, state: State, scope: Set[Value]) -> bool:
        """Whether ``op`` was right in this ``state``, and reads nothing but what is in scope."""
        return _RIGHT.get(op) == state and all(v in scope for v in _read(op))

    def keep(self, op: Op, state: State) -> None:
        """Nothing was wrong with ``op`` in this ``state``."""
        _RIGHT[op] = state


@shared
def _around(*parts: object) -> object:
    """One object for all modules that agree in ``parts``."""
    return object()


def _read(op: Op) -> list[Value]:
    """The values and buffers that an op reads."""
    values = [v.buffer if isinstance(v, View) else v for v in op.operands]
    return [v for v in values if isinstance(v, Value)]
