"""The mesh: named axes of cores, their factors, and how each is ordered (placement).

A mesh has the axes that a device gives it, outermost first. The last two are its *plane*: cores
that differ in the first of them lie above each other, those that differ in the second beside each
other. An axis before them counts *regions*, equal planes that work one after the other. An axis
may be divided into factors, a group of heads to each part of the first and cores of one group to
those of the second.

An *interleaved* axis is numbered so that neighbours in *rank* are at most two hops apart and the
ranks form a ring (INTERLEAVE, WaferLLM section 5.2); a natural axis has rank = position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from meshc.devices.axes import MAX_CORES, factors_of
from meshc.support.shared import hashed_once


@hashed_once
@dataclass(frozen=True)
class Axis:
    """``size`` parts called ``name``; the sizes of its ``factors``, outermost first, make up its
    own."""

    name: str
    size: int
    interleaved: bool = False
    factors: tuple[Axis, ...] = ()

    def __str__(self) -> str:
        order = " interleaved" if self.interleaved else ""
        factors = f" ({', '.join(map(str, self.factors))})" if self.factors else ""
        return f"{self.name} = {self.size}{order}{factors}"


@hashed_once
@dataclass(frozen=True)
class Mesh:
    """``axes``, outermost first, the last two of which are the plane.

    ``origins`` gives each region's first (column, row) on the device.
    """

    axes: tuple[Axis, ...]
    origins: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        mistake = mesh_mistake(self.axes)
        if mistake:
            raise ValueError(mistake)

    # --- names

    @property
    def down(self) -> str:
        """The axis that counts rows of the plane."""
        return self.axes[-2].name

    @property
    def across(self) -> str:
        """The axis that counts columns of the plane."""
        return self.axes[-1].name

    @property
    def plane(self) -> tuple[str, str]:
        """The axes of the plane: what counts rows, what counts columns."""
        return self.down, self.across

    @property
    def outer(self) -> str:
        """The axis that counts regions, or nothing."""
        return self.axes[0].name if len(self.axes) > 2 else ""

    @property
    def group(self) -> str:
        """The factor of the columns that counts segments, or nothing."""
        factors = self.axes[-1].factors
        return factors[0].name if factors else ""

    @property
    def inner(self) -> str:
        """The factor of the columns that counts cores of a segment; all columns where they have no
        factors."""
        factors = self.axes[-1].factors
        return factors[-1].name if factors else self.across

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axes, outermost first, without factors."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def parts(self) -> dict[str, Axis]:
        """Axes and factors by name: every axis, then its factors."""
        return {part.name: part for axis in self.axes for part in (axis, *axis.factors)}

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """What may be in ring order: the axes of the plane and the cores of a segment."""
        return tuple(dict.fromkeys((self.down, self.across, self.inner)))

    @cached_property
    def coordinates(self) -> frozenset[str]:
        """Names of a core's coordinates: its position on every axis and factor, its ranks, and how
        far it is from the middle of each axis of the plane."""
        folds = map(fold_name, self.plane)
        return frozenset((*self.parts, *map(rank_name, self.ranked), *folds))

    def coordinates_of(self, axis: str) -> frozenset[str]:
        """Names of the coordinates that tell where a core is on ``axis`` of the plane."""
        mine = (axis, *(factor.name for factor in self.parts[axis].factors))
        ranks = (rank_name(name) for name in mine if name in self.ranked)
        return frozenset((*mine, *ranks, fold_name(axis)))

    def index(self, axis: str) -> str:
        """The coordinate that says which part of ``axis`` a core is: its rank where it has one."""
        return rank_name(axis) if axis in self.ranked else axis

    def whole(self, axis: str) -> str:
        """The axis that ``axis`` is, or is a factor of."""
        return self._wholes[axis]

    @cached_property
    def _wholes(self) -> dict[str, str]:
        return {part.name: axis.name for axis in self.axes for part in (axis, *axis.factors)}

    def other(self, axis: str) -> str:
        """The axis of the plane that crosses ``axis``."""
        return self.across if self.whole(axis) == self.down else self.down

    # --- sizes and order

    def size(self, axis: str) -> int:
        """Number of parts of an axis or factor."""
        return self.parts[axis].size

    @property
    def rows(self) -> int:
        """Rows of the plane."""
        return self.axes[-2].size

    @property
    def columns(self) -> int:
        """Columns of the plane."""
        return self.axes[-1].size

    @property
    def regions(self) -> int:
        """Number of planes."""
        return self.axes[0].size if self.outer else 1

    @property
    def segments(self) -> int:
        """Segments of the columns."""
        return self.size(self.group) if self.group else 1

    @property
    def cores(self) -> int:
        """Number of cores in all regions."""
        return prod(axis.size for axis in self.axes)

    def ring(self, axis: str) -> bool:
        """Whether ``axis`` is in ring order."""
        return self.parts[axis].interleaved

    @property
    def interleaved(self) -> tuple[str, ...]:
        """The axes and factors that are in ring order."""
        return tuple(name for name, part in self.parts.items() if part.interleaved)

    # --- other meshes

    def with_interleaved(self, names: Iterable[str]) -> Mesh:
        """The same cores, with exactly the axes ``names`` in ring order."""
        wanted = set(names)
        return replace(self, axes=_changed(self.axes, lambda a: a.name in wanted))

    def in_regions(self, name: str, origins: tuple[tuple[int, int], ...], count: int) -> Mesh:
        """``count`` such planes, counted by the axis ``name``."""
        return Mesh((Axis(name, count), *self.axes[-2:]), origins)

    def __str__(self) -> str:
        return f"{self.columns}x{self.rows}"


def plane_of(names: tuple[str, str], rows: int, columns: int, segments: int | None) -> Mesh:
    """A mesh of ``rows`` x ``columns`` cores, counted by the axes ``names``; the columns divided
    into ``segments`` and cores of one segment, unless None."""
    down, across = names
    factors: tuple[Axis, ...] = ()
    if segments is not None:
        group, inner = factors_of(across)
        factors = (Axis(group, segments), Axis(inner, columns // segments))
    return Mesh((Axis(down, rows), Axis(across, columns, factors=factors)))


def fold_name(axis: str) -> str:
    """The coordinate that says how many cores lie between a core and the middle of an axis of the
    plane, whose halves are folded onto each other there; the two cores beside it have 0."""
    return f"fold_{axis}"


def rank_name(axis: str) -> str:
    """The coordinate that is a core's rank on ``axis``."""
    return f"rank_{axis}"


def mesh_mistake(axes: tuple[Axis, ...]) -> str:
    """Why ``axes`` make no mesh; empty when they do."""
    every = [part for axis in axes for part in (axis, *axis.factors)]
    twice = next((a.name for a in every if [b.name for b in every].count(a.name) > 1), None)
    if len(axes) not in (2, 3):
        return f"a mesh has a plane of two axes and at most one before it, not {len(axes)} axes"
    if twice is not None:
        return f"two axes are called '{twice}'"
    if any(part.size < 1 for part in every):
        return "an axis has at least one part"
    if any(f.factors for a in axes for f in a.factors) or any(a.factors for a in axes[:-1]):
        return "only the last axis has factors, and these have none"
    if prod(axis.size for axis in axes) > MAX_CORES:
        return f"{prod(axis.size for axis in axes)} cores are more than any device has"
    inner = axes[-1].factors
    if inner and (len(inner) != 2 or prod(f.size for f in inner) != axes[-1].size):
        return f"two factors make up the {axes[-1].size} parts of '{axes[-1].name}'"
    if (axes[-3:-2] and axes[0].interleaved) or (inner and inner[0].interleaved):
        return "only the axes of the plane and the last factor may be interleaved"
    return ""


def _changed(axes: tuple[Axis, ...], interleaved: Callable[[Axis], bool]) -> tuple[Axis, ...]:
    return tuple(
        replace(a, interleaved=interleaved(a), factors=_changed(a.factors, interleaved))
        for a in axes
    )
