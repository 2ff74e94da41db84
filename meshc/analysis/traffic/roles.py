"""What cores have to do with channels, and the classes of cores that have the same to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.traffic.channels import Line, line_of
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module

SENDS, RECEIVES, BOTH, PASSES, NOTHING = "S", "R", "B", "P", "-"


def roles(line: Line, size: int) -> str:
    """A letter for each of the ``size`` positions of a line: whether a core there sends, receives,
    does both, lets messages pass or none of it."""
    found = [NOTHING] * size
    for low, high in line.messages().values():
        found[low : high + 1] = [PASSES if r == NOTHING else r for r in found[low : high + 1]]
    for place in line.senders:
        found[place] = SENDS
    for place in line.receivers:
        found[place] = BOTH if place in line.senders else RECEIVES
    return "".join(found)


@dataclass(frozen=True)
class CoreClass:
    """Cores of a region that have the same role on every channel: the position of one of them, and
    how many they are."""

    row: int
    column: int
    cores: int


def core_classes(module: Module, most: int) -> list[CoreClass]:
    """Classes of the cores of a tile-level ``module``, at most so many: where there are more, those
    of the most common kinds of rows and columns. They are in the order of their positions."""
    mesh = module.the_mesh()
    rows, columns = (_alike(module, mesh, axis) for axis in mesh.plane)
    pairs = [(row, column) for row in rows for column in columns]
    if len(pairs) > most:
        common = max(rows, key=len), max(columns, key=len)
        pairs = [(r, c) for r, c in pairs if r is common[0] or c is common[1]]
    pairs = sorted(pairs, key=lambda pair: -len(pair[0]) * len(pair[1]))[:most]
    found = [CoreClass(_middle(r), _middle(c), len(r) * len(c)) for r, c in pairs]
    return sorted(found, key=lambda one: (one.row, one.column))


def _alike(module: Module, mesh: Mesh, axis: str) -> list[list[int]]:
    """Positions on ``axis`` by their roles on all channels along it."""
    size = mesh.size(axis)
    lines = [line_of(channel, mesh) for channel in module.channels]
    along = [roles(line, size) for line in lines if line.axis == axis]
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place in range(size):
        found[tuple(one[place] for one in along)].append(place)
    return [*found.values()]


def _middle(places: Sequence[int]) -> int:
    return places[len(places) // 2]
