"""Where cores are: coordinates and ranks of every core of a mesh, and coordinate functions.

An axis in ring order (INTERLEAVE, WaferLLM section 5.2) is numbered so that ranks that follow each
other, the last and the first included, are at most two hops apart: going up the even positions and
coming back down the odd ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from meshc.ir.affine import CoordinateFunction, IntArray, IntLike
from meshc.ir.mesh import Mesh


def ring_rank(position: IntLike, size: int) -> IntLike:
    """Rank on the ring of the core at ``position`` of an axis of ``size`` cores."""
    up, down = position // 2, size - (position + 1) // 2
    even = position % 2 == 0
    return np.where(even, up, down) if isinstance(position, np.ndarray) else up if even else down


def ring_position(rank: IntLike, size: int) -> IntLike:
    """Position of the core that has ``rank``; the inverse of :func:`ring_rank`."""
    up, down = 2 * rank, 2 * (size - rank) - 1
    first = up < size
    return np.where(first, up, down) if isinstance(rank, np.ndarray) else up if first else down


def _same(value: IntLike, size: int) -> IntLike:
    """Rank and position of an axis in natural order."""
    return value


def to_middle(position: IntLike, size: int) -> IntLike:
    """How many cores lie between ``position`` and the middle of an axis of ``size`` cores."""
    middle = size // 2
    behind = position >= middle
    beyond, before = position - middle, middle - 1 - position
    return (
        np.where(behind, beyond, before)
        if isinstance(position, np.ndarray)
        else (beyond if behind else before)
    )


def core_coordinates(mesh: Mesh) -> dict[str, IntArray]:
    """Coordinates by name, each an array over the cores in linear order (the last axis fastest):
    the position on each axis, the part and the place of its factors, the ranks, and how far the
    middle of each axis of the plane is."""
    found: dict[str, IntArray] = {}
    places = np.indices([axis.size for axis in mesh.axes])
    for axis, place in zip(mesh.axes, places, strict=True):
        found[axis.name] = rest = place.reshape(-1)
        for factor in reversed(axis.factors):
            found[factor.name] = rest % factor.size
            rest = rest // factor.size
    for name in mesh.ranked:
        rank = ring_rank if mesh.ring(name) else _same
        found[f"rank_{name}"] = np.asarray(rank(found[name], mesh.size(name)))
    for name in mesh.plane:
        found[f"fold_{name}"] = np.asarray(to_middle(found[name], mesh.size(name)))
    return found


def part_indices(mesh: Mesh, axis: str) -> IntArray:
    """For every core, which part of ``axis`` it is: its rank, or its place where ranks are none."""
    coordinates = core_coordinates(mesh)
    return coordinates.get(f"rank_{axis}", coordinates[axis])


def coordinate_functions(mesh: Mesh) -> dict[str, CoordinateFunction]:
    """``ring_A(position)`` and ``core_A(rank)`` for each axis or factor A that has ranks, and
    ``fold_A(position)`` for each axis of the plane."""
    found: dict[str, CoordinateFunction] = {
        f"fold_{axis}": partial(to_middle, size=mesh.size(axis)) for axis in mesh.plane
    }
    for axis in mesh.ranked:
        ring = mesh.ring(axis)
        found[f"ring_{axis}"] = partial(ring_rank if ring else _same, size=mesh.size(axis))
        found[f"core_{axis}"] = partial(ring_position if ring else _same, size=mesh.size(axis))
    return found


def core_text(mesh: Mesh, core: int) -> str:
    """How messages name a core."""
    place = np.unravel_index(core, [axis.size for axis in mesh.axes])
    named = zip(mesh.axes, place, strict=True)
    shown = [f"{a.name}={i}" for a, i in named if a.name in mesh.plane or a.size > 1]
    return f"core ({', '.join(shown)})"


def elsewhere(the_mesh: Mesh, axis: str) -> list[IntArray]:
    """All coordinates but the part of ``axis``: for each of them an array over the cores."""
    others = [
        part.name
        for whole in the_mesh.axes
        for part in (whole.factors if axis in (f.name for f in whole.factors) else (whole,))
        if part.name != axis
    ]
    return [part_indices(the_mesh, other) for other in others]
