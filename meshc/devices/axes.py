"""The axes that devices of each kind give to meshes of their cores.

A mesh of a wafer has rows (``y``) of cores beside each other (``x``), in several rectangles
(regions, ``r``) if one does not hold the layers. Whatever is compiled for a device takes the names
from here or from the module that was given, and spells none itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.mesh import Axis, Mesh


@dataclass(frozen=True)
class AxisNames:
    """Names of an axis that counts regions and of those that count rows and columns of a plane."""

    outer: str
    down: str
    across: str

    def plane(self, rows: int, columns: int, segments: int | None = None) -> Mesh:
        """A mesh of ``rows`` x ``columns`` cores, the columns in ``segments`` unless None."""
        factors: tuple[Axis, ...] = ()
        if segments is not None:
            inside = Axis(f"{self.across}d", columns // segments)
            factors = (Axis(f"{self.across}h", segments), inside)
        return Mesh((Axis(self.down, rows), Axis(self.across, columns, factors=factors)))


WAFER = AxisNames(outer="r", down="y", across="x")
"""Of every device in the catalogue so far: one GPU of a node is a core of a single row."""
