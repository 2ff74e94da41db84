"""State that one phase leaves to the next, as it lies on the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from meshc.interp.named import Array
from meshc.interp.shards import Sharding
from meshc.ir.mesh import Mesh
from meshc.ir.types import TensorType, Type
from meshc.support.diagnostics import fail

_NOTHING = np.zeros((0, 0), np.int64)


@dataclass(frozen=True)
class State:
    """By name what each state holds and its type; ``mesh`` is where it lies, None at graph level.

    Arrays are logical tensors at graph and mesh level, ``[cores, *extents]`` of buffers at tile
    level.
    """

    mesh: Mesh | None
    kept: Mapping[str, tuple[Type, Array]]

    def of(self, name: str) -> tuple[Type, Array]:
        """Type and array of ``name``. Raises ``interp-state`` when it is not there."""
        if name not in self.kept:
            fail("interp-state", f"the other phase has no state '{name}'")
        return self.kept[name]

    def handed_over(
        self, name: str, kind: TensorType, mesh: Mesh | None, extents: Mapping[str, int]
    ) -> Array:
        """The logical tensor of ``name`` for cores of ``mesh`` that keep it as ``kind``. Raises
        ``interp-state`` where a core has other elements in its lanes over there: it would take them
        for its own."""
        theirs, array = self.of(name)
        if mesh is None or self.mesh is None or (theirs, self.mesh) == (kind, mesh):
            return array
        assert isinstance(theirs, TensorType)
        there = Sharding(theirs, self.mesh, extents, extents).elements
        here = Sharding(kind, mesh, extents, extents).elements
        pairs = zip_longest(there, here, fillvalue=_NOTHING)
        if any(not np.array_equal(one, other) for one, other in pairs):
            fail(
                "interp-state",
                f"cores have other elements of '{name}' in their lanes over there",
                notes=[
                    f"over there: {theirs} on a mesh {_axes(self.mesh)}",
                    f"here: {kind} on a mesh {_axes(mesh)}",
                ],
                help="give both phases the same passes, so that cores keep state where it is read",
            )
        return array


def _axes(mesh: Mesh) -> str:
    return ", ".join(map(str, mesh.axes))
