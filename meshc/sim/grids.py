"""What the PEs of a rectangle have, kept as arrays: the class of each, and their routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshc.sim.route_configs import ColorConfig

# A bound for arrays with an entry for each PE; a wafer has about a million PEs.
MOST_PES = 1 << 22


@dataclass(eq=False)
class Tiles(Mapping[tuple[int, int], int]):
    """Maps (x, y) to the number of a class. ``classes`` [y, x] is -1 where there is no PE."""

    classes: Any

    @classmethod
    def of(cls, tiles: Mapping[tuple[int, int], int]) -> Tiles:
        """The same tiles as an array just large enough. Coordinates start at 0."""
        classes = np.full(_extents(tiles), -1, np.int32)
        for (x, y), number in tiles.items():
            classes[y, x] = number
        return cls(classes)

    def __getitem__(self, at: tuple[int, int]) -> int:
        number = _at(self.classes, at)
        if number < 0:
            raise KeyError(at)
        return number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Row by row."""
        rows, columns = np.nonzero(self.classes >= 0)
        return zip(columns.tolist(), rows.tolist(), strict=True)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.classes >= 0))


@dataclass(eq=False)
class Routes(Mapping[tuple[int, int, int], ColorConfig]):
    """Maps (x, y, color) to a configuration.

    ``numbers`` has an array [y, x] for each color: places in ``configs``, -1 where the color has
    no route.
    """

    configs: list[ColorConfig]
    numbers: dict[int, Any]

    @classmethod
    def of(cls, routes: Mapping[tuple[int, int, int], ColorConfig]) -> Routes:
        """The same routes as arrays just large enough. Coordinates start at 0."""
        known: dict[ColorConfig, int] = {}
        shape = _extents(key[:2] for key in routes)
        colors = sorted({color for _, _, color in routes})
        numbers = {color: np.full(shape, -1, np.int32) for color in colors}
        for (x, y, color), config in routes.items():
            numbers[color][y, x] = known.setdefault(config, len(known))
        return cls(list(known), numbers)

    def __getitem__(self, key: tuple[int, int, int]) -> ColorConfig:
        x, y, color = key
        number = _at(self.numbers[color], (x, y))
        if number < 0:
            raise KeyError(key)
        return self.configs[number]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Color by color, row by row."""
        for color, grid in self.numbers.items():
            rows, columns = np.nonzero(grid >= 0)
            for x, y in zip(columns.tolist(), rows.tolist(), strict=True):
                yield x, y, color

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(grid >= 0)) for grid in self.numbers.values())


def _extents(places: Any) -> tuple[int, int]:
    """Rows and columns that hold all of some places (x, y)."""
    found = [(0, 0), *((y + 1, x + 1) for x, y in places)]
    return max(rows for rows, _ in found), max(columns for _, columns in found)


def _at(grid: Any, at: tuple[int, int]) -> int:
    x, y = at
    if not (0 <= y < grid.shape[0] and 0 <= x < grid.shape[1]):
        return -1
    return int(grid[y, x])
