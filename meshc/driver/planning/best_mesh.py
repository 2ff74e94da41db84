"""The best mesh of a wafer for a phase: the one whose program fits and has the fewest cycles.

The lanes of a core drop where a mesh becomes as wide as ``ceil(extent / k)``, so those are the
sides that are tried, or where they are many the next columns that whole key heads divide: squares
first, then rectangles around the best of them. All are compared by the search's costs, which need
no tile program; what fits is compiled, from the fastest on. ``meshc tune`` tries the same meshes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from meshc.analysis.layout.tiling import ceil_div, heads_of
from meshc.backends.request import CompileRequest
from meshc.cost.mesh_modules import searched
from meshc.driver.models import LoadedModel
from meshc.driver.planning.wafers import MeshPhase
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.ops.graph import Repeat
from meshc.support.diagnostics import MeshcError

_SIDES = 96
"""Sides that are tried at most."""
_GRAIN = 8
"""Sides are multiples of the largest divisor of the key heads up to so many."""
BEST = 2
"""Squares around which rectangles are tried."""
_AROUND = 2
"""Sides up and down from a side of a square that those of a rectangle are."""
_FITTED = 24
"""Meshes whose program is compiled at most."""
_SURELY = 0.75
"""The share of what the fastest program takes beside weights, code above all, that others take too;
those that have room for it are compiled first."""


def best_mesh(
    loaded: LoadedModel, phase: str, request: CompileRequest, watch: Callable[[str], None]
) -> str:
    """The mesh of the device of ``request`` that holds ``phase`` in the fewest cycles or, where
    none of those that were tried does, the one with the fewest cycles. Raises what compiling raises
    where there is no program on any mesh."""
    search = _Search(loaded, phase, request, watch)
    sides = sides_of(loaded, phase, request)
    for side in sides:
        search.tried(side, side)
    device = request.the_device()
    if device.link.topology == "torus":
        search.tried(device.cores_x, device.cores_y)
    best = sorted(search.cycles, key=search.cycles.__getitem__)[:BEST]
    for columns, rows in rectangles_around(best, sides):
        search.tried(columns, rows)
    ranked = sorted(search.cycles, key=lambda mesh: (search.cycles[mesh], mesh))
    if not ranked:
        raise MeshcError(search.refused.diagnostics if search.refused else [])
    hopeful = [mesh for mesh in ranked if search.may_fit(mesh)]
    beside = search.beside_weights(*hopeful[0]) if hopeful else 0
    likely = [mesh for mesh in hopeful if search.may_fit(mesh, _SURELY * beside)]
    for columns, rows in [*likely, *(mesh for mesh in hopeful if mesh not in likely)][:_FITTED]:
        if search.fits(columns, rows):
            return f"{columns}x{rows}"
    columns, rows = (hopeful or ranked)[0]
    return f"{columns}x{rows}"


def sides_of(loaded: LoadedModel, phase: str, request: CompileRequest) -> list[int]:
    """The sides that are tried, from small to large: those at which a core has a lane less of the
    widest two dims of the weights of a layer; where these are many, those of whole key heads.
    Raises what reading the model raises."""
    device = request.the_device()
    most = min(device.cores_x, device.cores_y)
    graph = MeshPhase(loaded, phase, request.changed(mesh="1x1")).graph
    heads = heads_of(graph)
    parts = 1 if heads is None or heads.headless else graph.dims[heads.key]
    grain = max(n for n in range(1, _GRAIN + 1) if parts % n == 0)
    extents = set(_extents(graph))
    lanes = {ceil_div(extent, k) for extent in extents for k in range(1, extent + 1)}
    found = [side for side in sorted(lanes) if side <= most]
    while len(found) > _SIDES:
        whole = sorted({grain * ceil_div(side, grain) for side in lanes})
        found = [side for side in whole if side <= most]
        grain *= 2
    return found or [most]


def _extents(graph: Module) -> Iterator[int]:
    """Extents of the widest two dims of the weights that loops over layers read, or of all."""
    loops = [op for op in graph.function.body.ops if isinstance(op, Repeat)]
    within = {value for loop in loops for value in loop.tensors()}
    weights = [p.value for p in graph.function.params if p.role == "weight"]
    for value in [one for one in weights if one in within] or weights:
        yield from (graph.dims[dim] for dim in tensor_type(value).dims[-2:])


def rectangles_around(
    meshes: Sequence[tuple[int, int]], sides: Sequence[int]
) -> list[tuple[int, int]]:
    """Columns and rows near those of ``meshes``, which may have others themselves, as far as they
    are ``sides``, each once."""
    found = [(w, h) for x, y in meshes for w in _near(sides, x) for h in _near(sides, y)]
    return list(dict.fromkeys(found))


def _near(sides: Sequence[int], side: int) -> Sequence[int]:
    at = bisect_left(sides, side)
    return sides[max(0, at - _AROUND) : at + _AROUND + 1]


def weights_of_core(module: Module, places: int) -> int:
    """Bytes of the weights of a core of a mesh-level module whose layers, if one loop has all, are
    dealt to ``places`` regions."""
    loops = [op for op in module.function.body.ops if isinstance(op, ops.Repeat)]
    dealt = loops[0].dim if len(loops) == 1 else ""
    shares = {**module.dims, dealt: ceil_div(module.dims.get(dealt, 1), max(1, places))}
    kinds = [tensor_type(p.value) for p in module.function.params if p.role == "weight"]
    return sum(kind.dtype.bytes * prod(kind.local_shape(shares)) for kind in kinds)


@dataclass
class _Search:
    loaded: LoadedModel
    phase: str
    request: CompileRequest
    watch: Callable[[str], None]
    cycles: dict[tuple[int, int], float] = field(default_factory=dict)
    refused: MeshcError | None = None
    _weights: dict[tuple[int, int], int] = field(default_factory=dict)

    def at(self, columns: int, rows: int) -> MeshPhase:
        """The phase on a mesh, of which no more is asked than what it costs and whether it fits."""
        request = self.request.changed(mesh=f"{columns}x{rows}")
        return MeshPhase(self.loaded, self.phase, request, trial=True)

    def tried(self, columns: int, rows: int) -> None:
        """Have the cycles of a mesh, if there is a program on it."""
        if (columns, rows) in self.cycles:
            return
        self.watch(f"{self.loaded.name}, {self.phase} on {columns}x{rows}")
        one, device = self.at(columns, rows), self.request.the_device()
        places = (device.cores_x // columns) * (device.cores_y // rows)
        try:
            self.cycles[columns, rows] = searched(one.chosen).total
            self._weights[columns, rows] = weights_of_core(one.chosen, places)
        except MeshcError as refusal:
            self.refused = self.refused or refusal

    def may_fit(self, mesh: tuple[int, int], beside: float = 0) -> bool:
        """Whether cores of as many regions as there is room for have the bytes of their weights,
        and of so much ``beside`` them."""
        device, share = self.request.the_device(), self._weights[mesh]
        room, size = device.data_bytes, device.memory_bytes
        if room is None or size is None:
            return True
        return share <= room and share + beside <= size

    def beside_weights(self, columns: int, rows: int) -> int:
        """Bytes of a core that a program takes beside its weights, whether it fits or not; 0 where
        nobody knows."""
        try:
            fit = self.at(columns, rows).program.fit
        except MeshcError:
            return 0
        uses = {} if fit is None else fit.uses
        return sum(taken for name, taken in uses.items() if name not in ("weights", "left"))

    def fits(self, columns: int, rows: int) -> bool:
        """Whether cores hold the program."""
        self.watch(f"{self.loaded.name}, {self.phase} on {columns}x{rows}: whether it fits")
        try:
            self.at(columns, rows).fit()
        except MeshcError:
            return False
        return True
