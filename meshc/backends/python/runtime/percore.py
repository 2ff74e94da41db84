"""Integers and truth values that every core has of its own, and the coordinates of the cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[Any]  # [regions, rows, columns, further axes..], axes of extent 1 are broadcast


class IsolationError(Exception):
    """A program tried to reach the memory of the cores other than by kernels and channels."""


class PerCore:
    """One integer (or truth value) for each core. Arithmetic is done by every core on its own.

    Axes after the first three, as lanes of a port, run over several values per core. Equality is
    elementwise, like every comparison; hashing is by identity.
    """

    __slots__ = ("_grid",)
    __array_ufunc__ = None

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __add__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.add(*_aligned(self, other)))

    __radd__ = __add__

    def __sub__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.subtract(*_aligned(self, other)))

    def __rsub__(self, other: int) -> PerCore:
        return PerCore(other - self._grid)

    def __neg__(self) -> PerCore:
        return PerCore(-self._grid)

    def __mul__(self, factor: int) -> PerCore:
        return PerCore(self._grid * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> PerCore:
        return PerCore(self._grid // divisor)

    def __mod__(self, modulus: int) -> PerCore:
        return PerCore(self._grid % modulus)

    def __eq__(self, other: object) -> PerCore:  # type: ignore[override]
        return PerCore(np.equal(*_aligned(self, other)))

    def __ne__(self, other: object) -> PerCore:  # type: ignore[override]
        return PerCore(np.not_equal(*_aligned(self, other)))

    __hash__ = object.__hash__

    def __ge__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.greater_equal(*_aligned(self, other)))

    def __le__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.less_equal(*_aligned(self, other)))

    def __gt__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.greater(*_aligned(self, other)))

    def __lt__(self, other: PerCore | int) -> PerCore:
        return PerCore(np.less(*_aligned(self, other)))

    def __and__(self, other: PerCore | bool) -> PerCore:
        return PerCore(np.logical_and(*_aligned(self, other)))

    __rand__ = __and__

    def __or__(self, other: PerCore | bool) -> PerCore:
        return PerCore(np.logical_or(*_aligned(self, other)))

    __ror__ = __or__

    def __bool__(self) -> NoReturn:
        raise IsolationError("this value differs between cores; a guard selects cores by it")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise IsolationError("the values of all cores are not one array that a program can see")


def grid_of(value: PerCore | int) -> Grid:
    """The values behind ``value``; for the runtime, not for programs."""
    return value._grid if isinstance(value, PerCore) else np.full((1, 1, 1), value)


def _aligned(left: PerCore, right: object) -> tuple[Grid, Any]:
    """Both operands with axes matched from the left, where the core axes are."""
    mine = left._grid
    if not isinstance(right, PerCore):
        return mine, right
    theirs = right._grid
    rank = max(mine.ndim, theirs.ndim)
    return _extended(mine, rank), _extended(theirs, rank)


def _extended(grid: Grid, rank: int) -> Grid:
    return grid.reshape(grid.shape + (1,) * (rank - grid.ndim))


@dataclass(frozen=True)
class Mesh:
    """``regions`` rectangles of ``rows`` x ``columns`` cores; ``segments`` divides the columns."""

    rows: int
    columns: int
    regions: int = 1
    segments: int = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Extents of the core axes: regions, rows, columns."""
        return self.regions, self.rows, self.columns

    @property
    def count(self) -> int:
        """Number of cores."""
        return self.regions * self.rows * self.columns


class Coordinates:
    """Where a core is: ``r``, ``y``, ``x``; its segment ``xh`` and place in it ``xd``; its ranks.

    On an axis in ``interleaved`` the ranks 0, 1, 2, .. visit positions 0, 2, 4, .. and come back
    over the odd ones, so that neighbours in rank are at most two hops apart; elsewhere rank is
    position.
    """

    def __init__(self, mesh: Mesh, interleaved: tuple[str, ...] = ()) -> None:
        self._sizes = {"y": mesh.rows, "x": mesh.columns, "xd": mesh.columns // mesh.segments}
        self._interleaved = interleaved
        self.r, self.y, self.x = (PerCore(axis) for axis in np.indices(mesh.grid, sparse=True))
        self.xh = self.x // self._sizes["xd"]
        self.xd = self.x % self._sizes["xd"]
        self.rank_y = self._rank("y", self.y)
        self.rank_x = self._rank("x", self.x)
        self.rank_xd = self._rank("xd", self.xd)

    def every(self, extent: int, axis: int = 0) -> PerCore:
        """All of ``0 .. extent - 1`` on each core, along the further axis number ``axis``."""
        return PerCore(np.arange(extent).reshape((1,) * (3 + axis) + (extent,)))

    def core_y(self, rank: PerCore | int) -> PerCore:
        """The row that has ``rank``."""
        return self._position("y", rank)

    def core_x(self, rank: PerCore | int) -> PerCore:
        """The column that has ``rank``."""
        return self._position("x", rank)

    def core_xd(self, rank: PerCore | int) -> PerCore:
        """The place inside a segment that has ``rank``."""
        return self._position("xd", rank)

    def ring_y(self, position: PerCore | int) -> PerCore:
        """The rank of a row."""
        return self._rank("y", position)

    def ring_x(self, position: PerCore | int) -> PerCore:
        """The rank of a column."""
        return self._rank("x", position)

    def ring_xd(self, position: PerCore | int) -> PerCore:
        """The rank of a place inside a segment."""
        return self._rank("xd", position)

    def _rank(self, axis: str, position: PerCore | int) -> PerCore:
        at, size = grid_of(position), self._sizes[axis]
        if axis not in self._interleaved:
            return PerCore(at)
        return PerCore(np.where(at % 2 == 0, at // 2, size - (at + 1) // 2))

    def _position(self, axis: str, rank: PerCore | int) -> PerCore:
        at, size = grid_of(rank), self._sizes[axis]
        if axis not in self._interleaved:
            return PerCore(at)
        return PerCore(np.where(2 * at < size, 2 * at, 2 * (size - at) - 1))
