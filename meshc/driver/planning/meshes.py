"""The best mesh of a wafer for a phase: the one whose program fits and has the fewest cycles.

The lanes of a core drop where a mesh becomes as wide as ``ceil(extent / k)``, so those are the
sides that are tried: squares first, then rectangles around the best of them. All are compared by
the search's costs, which need no tile program; what fits is compiled, from the fastest on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from meshc.cost.mesh_modules import searched
from meshc.driver.models import LoadedModel
from meshc.driver.planning.cures import weight_bytes
from meshc.driver.planning.wafers import MeshPhase
from meshc.driver.request import CompileRequest
from meshc.ir.core import tensor_type
from meshc.support.diagnostics import MeshcError

_SIDES = 40
"""Sides that are tried at most."""
_BEST = 2
"""Squares around which rectangles are tried."""
_AROUND = 2
"""Sides up and down from a side of a square that those of a rectangle are."""
_FITTED = 24
"""Meshes whose program is compiled at most."""


def best_mesh(
    loaded: LoadedModel, phase: str, request: CompileRequest, watch: Callable[[str], None]
) -> str:
    """The mesh of the device of ``request`` that holds ``phase`` in the fewest cycles or, where
    none of those that were tried does, the one with the fewest cycles. Raises what compiling raises
    where there is no program on any mesh."""
    search = _Search(loaded, phase, request, watch)
    sides = search.sides()
    for side in sides:
        search.tried(side, side)
    for columns, rows in sorted(search.cycles, key=search.cycles.__getitem__)[:_BEST]:
        for wide in _near(sides, columns):
            for high in _near(sides, rows):
                search.tried(wide, high)
    ranked = sorted(search.cycles, key=lambda mesh: (search.cycles[mesh], mesh))
    if not ranked:
        raise MeshcError(search.refused.diagnostics if search.refused else [])
    hopeful = [mesh for mesh in ranked if search.may_fit(mesh)]
    for columns, rows in hopeful[:_FITTED]:
        if search.fits(columns, rows):
            return f"{columns}x{rows}"
    columns, rows = (hopeful or ranked)[0]
    return f"{columns}x{rows}"


def _near(sides: list[int], side: int) -> list[int]:
    at = sides.index(side)
    return sides[max(0, at - _AROUND) : at + _AROUND + 1]


@dataclass
class _Search:
    loaded: LoadedModel
    phase: str
    request: CompileRequest
    watch: Callable[[str], None]
    cycles: dict[tuple[int, int], float] = field(default_factory=dict)
    refused: MeshcError | None = None
    _bytes: int = 0

    def at(self, columns: int, rows: int) -> MeshPhase:
        """The phase on a mesh."""
        request = replace(self.request, mesh=f"{columns}x{rows}")
        return MeshPhase(self.loaded, self.phase, request)

    def sides(self) -> list[int]:
        """The sides that are tried, from small to large: those at which a core has a lane less of
        the widest two dims of the weights."""
        device = self.request.the_device()
        most = min(device.cores_x, device.cores_y)
        graph = self.at(1, 1).graph
        weights = [tensor_type(p.value) for p in graph.function.params if p.role == "weight"]
        extents = {graph.dims[dim] for kind in weights for dim in kind.dims[-2:]}
        found = {-(-extent // k) for extent in extents for k in range(1, extent + 1)}
        fitting = sorted(side for side in found if side <= most)
        step = -(-len(fitting) // _SIDES)
        return sorted({*fitting[::-step]})

    def tried(self, columns: int, rows: int) -> None:
        """Have the cycles of a mesh, if there is a program on it."""
        if (columns, rows) in self.cycles:
            return
        self.watch(f"{self.loaded.name}, {self.phase} on {columns}x{rows}")
        one = self.at(columns, rows)
        try:
            self.cycles[columns, rows] = searched(one.chosen).total
            self._bytes = weight_bytes(one)
        except MeshcError as refusal:
            self.refused = self.refused or refusal

    def may_fit(self, mesh: tuple[int, int]) -> bool:
        """Whether the regions that there is room for have the bytes of the weights."""
        device, (columns, rows) = self.request.the_device(), mesh
        places = (device.cores_x // columns) * (device.cores_y // rows)
        room = device.data_bytes
        return room is None or self._bytes <= places * columns * rows * room

    def fits(self, columns: int, rows: int) -> bool:
        """Whether cores hold the program."""
        self.watch(f"{self.loaded.name}, {self.phase} on {columns}x{rows}: whether it fits")
        try:
            self.at(columns, rows).fit()
        except MeshcError:
            return False
        return True
