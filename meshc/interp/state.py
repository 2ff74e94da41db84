"""State that one phase leaves to the next, as it lies on the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.interp.named import Array
from meshc.interp.shards import Sharding
from meshc.ir.mesh import Mesh
from meshc.ir.types import TensorType, Type
from meshc.support.diagnostics import fail


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
        """The logical tensor that cores find which take their lanes of ``name`` for ``kind`` on
        ``mesh``: another layout there reads other elements, or raises ``interp-state``."""
        theirs, array = self.of(name)
        if mesh is None or self.mesh is None or (theirs, self.mesh) == (kind, mesh):
            return array
        assert isinstance(theirs, TensorType)
        lanes = Sharding(theirs, self.mesh, extents, extents).scatter(array)
        own = Sharding(kind, mesh, extents, extents)
        if lanes.shape != own.shape:
            fail("interp-state", f"'{name}' lies as {theirs} over there, not as {kind}")
        return own.gather(lanes, name)
