"""Integers and truth values that every core has of its own, and the coordinates of the cores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[Any]  # [three axes of cores, further axes..], axes of extent 1 are broadcast


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


class Mesh:
    """Axes of cores by name with their sizes, outermost first, at most three.

    ``factors`` divide an axis into parts, ``{axis: {factor: size, ..}}``, outermost first.
    """

    def __init__(
        self, axes: Mapping[str, int], factors: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        self.axes = dict(axes)
        self.factors = {axis: dict(parts) for axis, parts in (factors or {}).items()}
        sizes = tuple(self.axes.values())
        self.grid: tuple[int, ...] = (1,) * (3 - len(sizes)) + sizes
        self.count = prod(sizes)

    def place(self, core: int) -> str:
        """The coordinates of ``core``, for messages; those of outer axes of one part are left
        out."""
        at = np.unravel_index(core, tuple(self.axes.values()))
        named = list(zip(self.axes.items(), at, strict=True))
        inner = len(named) - 2
        shown = [f"{n}={i}" for k, ((n, size), i) in enumerate(named) if k >= inner or size > 1]
        return f"({', '.join(shown)})"


class Coordinates:
    """Where a core is, as attributes: its position on every axis, its place by the factors of an
    axis, its rank ``rank_A`` on A, and how many cores lie between it and the middle of A,
    ``fold_A``. Functions: ``core_A(rank)`` and ``ring_A(position)``.

    On an axis in ``interleaved`` the ranks 0, 1, 2, .. visit positions 0, 2, 4, .. and come back
    over the odd ones, so that neighbours in rank are at most two hops apart; elsewhere rank is
    position.
    """

    def __init__(self, mesh: Mesh, interleaved: tuple[str, ...] = ()) -> None:
        self._sizes = dict(mesh.axes)
        self._interleaved = interleaved
        self._places: dict[str, PerCore] = {}
        places = list(np.indices(mesh.grid, sparse=True))[3 - len(mesh.axes) :]
        for axis, place in zip(mesh.axes, places, strict=True):
            self._places[axis] = rest = PerCore(place)
            for factor, size in reversed(mesh.factors.get(axis, {}).items()):
                self._places[factor] = rest % size
                self._sizes[factor] = size
                rest = rest // size

    def __getattr__(self, name: str) -> Any:
        places = self.__dict__["_places"]
        if name in places:
            return places[name]
        kind, _, axis = name.partition("_")
        if axis in places and kind == "rank":
            return self._rank(axis, places[axis])
        if axis in places and kind == "fold":
            at, middle = grid_of(places[axis]), self._sizes[axis] // 2
            return PerCore(np.where(at >= middle, at - middle, middle - 1 - at))
        if axis in places and kind in ("ring", "core"):
            return partial(self._rank if kind == "ring" else self._position, axis)
        raise AttributeError(f"a core has no coordinate '{name}'")

    def every(self, extent: int, axis: int = 0) -> PerCore:
        """All of ``0 .. extent - 1`` on each core, along the further axis number ``axis``."""
        return PerCore(np.arange(extent).reshape((1,) * (3 + axis) + (extent,)))

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
