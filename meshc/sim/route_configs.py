"""Route configurations as the program states them: routes, switches, filters of one color."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RAMP, EAST, WEST, NORTH, SOUTH = range(5)
DIRECTION_NAMES = ("RAMP", "EAST", "WEST", "NORTH", "SOUTH")
STEP = {EAST: (1, 0), WEST: (-1, 0), NORTH: (0, -1), SOUTH: (0, 1)}
OPPOSITE = {EAST: WEST, WEST: EAST, NORTH: SOUTH, SOUTH: NORTH, RAMP: RAMP}

NO_POP, ALWAYS_POP, POP_ON_ADVANCE, POP_ON_ADVANCE_NOP = range(4)


@dataclass(frozen=True)
class Filter:
    """A filter in front of the RAMP. ``kind`` is range, counter or sparse_counter."""

    kind: str
    low: int = 0
    high: int = 0
    limit1: int = 0
    limit2: int = 0
    max_counter: int = 0
    init_counter: int = 0
    count_data: bool = False
    count_control: bool = False
    filter_control: bool = False


@dataclass(frozen=True)
class ColorConfig:
    """``switches`` holds (new rx or None, new tx or None) per position, None for an invalid one.

    ``rx`` and ``tx`` of a position are one direction or a tuple of them.
    """

    rx: tuple[int, ...] = ()
    tx: tuple[int, ...] = ()
    switches: tuple[Any, ...] = ()
    position: int = 0
    ring: bool = False
    pop: int = NO_POP
    teardown: bool = False
    swap_x: bool = False
    swap_y: bool = False
    filter: Filter | None = None
    place: str = field(default="", compare=False)

    @property
    def is_static(self) -> bool:
        """Whether wavelets cannot change the route."""
        plain = not self.switches and not self.teardown and self.position == 0
        return plain and not self.swap_x and not self.swap_y
