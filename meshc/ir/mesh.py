"""The mesh: named axes of cores, factored axes, and how each axis is ordered (placement).

Axes are ``r`` (regions of the wafer), ``y`` (rows) and ``x`` (columns). ``x`` may be factored into
``xh`` (segments, one per group of heads) and ``xd`` (cores inside a segment).
An *interleaved* axis is numbered so that neighbours in *rank* are at most two hops apart and the
ranks form a ring (INTERLEAVE, WaferLLM section 5.2); a natural axis has rank = position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

AXES = ("r", "y", "x")
FACTORS = ("xh", "xd")


@dataclass(frozen=True)
class Mesh:
    """``rows`` x ``columns`` cores in each of ``regions`` equal rectangles.

    ``segments`` divides ``columns``. ``interleaved`` names the axes in ring order, out of
    ``y``, ``x`` and ``xd``. ``origins`` gives each region's first (column, row) on the device.
    """

    rows: int
    columns: int
    regions: int = 1
    segments: int = 1
    interleaved: tuple[str, ...] = ()
    origins: tuple[tuple[int, int], ...] = ()

    def size(self, axis: str) -> int:
        """Number of parts of ``axis``."""
        sizes = {
            "r": self.regions,
            "y": self.rows,
            "x": self.columns,
            "xh": self.segments,
            "xd": self.columns // self.segments,
        }
        return sizes[axis]

    @property
    def cores(self) -> int:
        """Number of cores in all regions."""
        return self.regions * self.rows * self.columns

    def ring(self, axis: str) -> bool:
        """Whether ``axis`` is in ring order."""
        return axis in self.interleaved

    def with_interleaved(self, axes: tuple[str, ...]) -> Mesh:
        """The same cores, with ``axes`` in ring order."""
        return replace(self, interleaved=axes)

    def __str__(self) -> str:
        return f"{self.columns}x{self.rows}"
