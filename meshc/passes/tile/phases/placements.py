"""Where weights lie in one phase, and by which moves they come to lie as in another.

What a core holds is read off the ports, lane by lane. Two placements are compared on all lanes of
all cores where these are few; else on the first and last lanes of all cores and on all lanes of
some cores, drawn by a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.layout.coordinates import coordinate_functions
from meshc.ir.affine import IntLike
from meshc.ir.mesh import Mesh
from meshc.ir.module import Port
from meshc.ir.types import BufferType
from meshc.passes.tile.phases.lines import Coordinates, LineMove, coordinates, plans, sources

_FEW = 1 << 22
"""Lanes of all cores that are compared one by one."""
_SOME_CORES = 256
_PADDING, _UNFILLED = -1, -2

Lanes = tuple[NDArray[np.int64], ...]


class Placement:
    """What the cores of ``mesh`` hold in a buffer that ``ports`` fill, whose tensors have the
    extents that ``dims`` says."""

    def __init__(self, ports: Sequence[Port], mesh: Mesh, dims: Mapping[str, int]) -> None:
        self.ports = sorted(ports, key=lambda port: port.name)
        self.mesh, self.dims = mesh, dims
        kind = ports[0].buffer.type
        assert isinstance(kind, BufferType)
        self.kind = kind

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that lie in the buffer."""
        return tuple(port.name for port in self.ports)

    @property
    def layers(self) -> int:
        """The layers that a core holds; 0 where the buffer has no dim that counts them."""
        return self.kind.shape[0] if self.ports[0].lanes[0] == "layer" else 0

    def has_dims_of(self, other: Placement) -> bool:
        """Whether the buffer has the dims of the other one, and between them none but of extent 1,
        so that views of the other one are views of it."""
        left = list(other.kind.shape)
        for extent in self.kind.shape:
            if left and extent == left[0]:
                left.pop(0)
            elif extent != 1:
                return False
        return not left

    def held(self, cores: Coordinates, lanes: Lanes) -> NDArray[np.int64]:
        """A number for the element, of all tensors, that each lane of each core holds, [cores,
        lanes]."""
        functions = coordinate_functions(self.mesh)
        env: dict[str, IntLike] = {
            name: np.asarray(value)[..., None]
            for name, value in coordinates(self.mesh, cores).items()
        }
        found = np.full((len(next(iter(cores.values()))), len(lanes[0])), _UNFILLED)
        first = 0
        for port in self.ports:
            known: dict[str, IntLike] = {**env, **dict(zip(port.lanes, lanes, strict=True))}
            for name, value in port.lets:
                known[name] = value.evaluate(known, functions)
            own = True if port.where is None else port.where.evaluate(known, functions)
            shape = port.tensor.shape(self.dims)
            index = [np.asarray(e.evaluate(known, functions)) for e in port.element]
            inside = np.all(
                np.broadcast_arrays(
                    *((i >= 0) & (i < n) for i, n in zip(index, shape, strict=True))
                ),
                axis=0,
            )
            place = np.zeros((1, 1), np.int64)
            for at, extent in zip(index, shape, strict=True):
                place = place * extent + at
            number = np.where(inside, first + place, _PADDING)
            found = np.where(own, number, found)
            first += prod(shape)
        return found


def moves_between(given: Placement, wanted: Placement) -> tuple[LineMove, ...] | None:
    """The fewest moves known behind which cores hold what is ``wanted``; None where there are none,
    be it that blocks are cut differently."""
    if not given.has_dims_of(wanted) or given.layers != wanted.layers:
        return None
    pads = {port.pad for each in (given, wanted) for port in each.ports}
    if given.names != wanted.names or len(pads) > 1:
        return None
    tries = list(_tries(given, wanted))
    for moves in plans(given.mesh):
        if all(_agree(given, wanted, moves, *one) for one in tries):
            return moves
    return None


def _agree(
    given: Placement,
    wanted: Placement,
    moves: Sequence[LineMove],
    cores: Coordinates,
    places: NDArray[np.int64],
) -> bool:
    """Whether moves bring to lanes ``places`` of ``cores`` what is wanted there."""
    there = sources(given.mesh, moves, cores)
    mine = given.held(there, np.unravel_index(places, given.kind.shape))
    return np.array_equal(mine, wanted.held(cores, np.unravel_index(places, wanted.kind.shape)))


def _tries(given: Placement, wanted: Placement) -> list[tuple[Coordinates, NDArray[np.int64]]]:
    """Cores and lanes to compare, the cheapest first."""
    mesh = given.mesh
    shape = tuple(mesh.size(name) for name in mesh.names)
    every = _cores(mesh, np.arange(mesh.cores))
    lanes = np.arange(prod(given.kind.shape))
    if mesh.cores * len(lanes) <= _FEW:
        return [(every, lanes[:1]), (every, lanes)]
    ends = np.unique(
        [np.ravel_multi_index(corner, given.kind.shape) for corner in _corners(given.kind.shape)]
    )
    drawn = np.random.default_rng(prod(shape)).choice(mesh.cores, _SOME_CORES, replace=False)
    return [(_cores(mesh, np.sort(drawn)), ends), (every, ends), (_cores(mesh, drawn), lanes)]


def _cores(mesh: Mesh, numbers: NDArray[np.int64]) -> Coordinates:
    shape = tuple(mesh.size(name) for name in mesh.names)
    return dict(zip(mesh.names, np.unravel_index(numbers, shape), strict=True))


def _corners(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The first and the last place of each dim, in all combinations."""
    found: list[tuple[int, ...]] = [()]
    for extent in shape:
        found = [(*corner, at) for corner in found for at in dict.fromkeys((0, extent - 1))]
    return found
