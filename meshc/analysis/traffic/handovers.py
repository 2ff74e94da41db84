"""Where the next region lies: along which axis of the plane a region hands over, and which way.

Regions are equal planes that work one after the other. On a device with places each has an origin,
and a region shares an edge with the next one: activations cross that edge. Regions without places
stand side by side along the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshc.analysis.traffic.runs import among
from meshc.ir.affine import Cond, Expr
from meshc.ir.mesh import Mesh
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Handover:
    """``regions`` hand over to the next one across an edge of ``axis``: behind their last core of
    it (``way`` 1) or before their first (-1)."""

    axis: str
    way: int
    regions: tuple[int, ...]

    def leaves(self, mesh: Mesh) -> Cond:
        """The cores of the regions that hand over. Raises ``too-many-turns``."""
        return among(Expr.var(mesh.outer), self.regions, mesh.regions)

    def arrives(self, mesh: Mesh) -> Cond:
        """The cores of the regions that take over. Raises ``too-many-turns``."""
        return among(Expr.var(mesh.outer), [r + 1 for r in self.regions], mesh.regions)

    def place(self, mesh: Mesh) -> Expr:
        """How far a core is along the way, counted from 0 in each region."""
        here = Expr.var(self.axis)
        return here if self.way > 0 else (mesh.size(self.axis) - 1) - here


def handovers(mesh: Mesh) -> tuple[Handover, ...]:
    """All ways from a region of ``mesh`` to the next, one for each axis and direction.

    Raises ``regions-apart`` where two regions in a row have no edge in common.
    """
    found: dict[tuple[str, int], list[int]] = {}
    for region, (here, there) in enumerate(pairwise(origins_of(mesh))):
        found.setdefault(_direction(mesh, region, here, there), []).append(region)
    return tuple(Handover(axis, way, tuple(r)) for (axis, way), r in sorted(found.items()))


def origins_of(mesh: Mesh) -> Sequence[tuple[int, int]]:
    """First (column, row) of each region on the device."""
    return mesh.origins or [(region * mesh.columns, 0) for region in range(mesh.regions)]


def _direction(
    mesh: Mesh, region: int, here: tuple[int, int], there: tuple[int, int]
) -> tuple[str, int]:
    across, down = there[0] - here[0], there[1] - here[1]
    if down == 0 and abs(across) == mesh.columns:
        return mesh.across, 1 if across > 0 else -1
    if across == 0 and abs(down) == mesh.rows:
        return mesh.down, 1 if down > 0 else -1
    fail(
        "regions-apart",
        f"region {region} of {mesh} cores begins at column and row {here}, the next one at "
        f"{there}: they have no edge in common",
        help="activations cross from a region to the next at an edge that both have whole",
    )
