"""What a layout block says of the PEs of its rectangle: which code each runs, and its routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshc.sim.grids import Routes
from meshc.sim.route_configs import ColorConfig
from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.frozen import frozen
from meshc.sim.sema.iteration_lanes import Lanes, Points, Ungroupable, alike, values_at
from meshc.sim.sema.values import FnVal, Module, RangeVal, Val
from meshc.support.spans import Span


@dataclass(frozen=True)
class TileCode:
    """A file with its parameters, and where the layout gives it to PEs."""

    path: str
    params: dict[str, Val]
    span: Span


@dataclass(frozen=True)
class _Pending:
    """Numbers for places of a grid, which is that of the code or of a color's configurations."""

    grid: Any
    places: Any
    numbers: Any

    def make(self) -> bool:
        """Write the numbers; False, with nothing written, when a place is taken or named twice."""
        flat = self.grid.reshape(-1)
        if flat[self.places].any():
            return False
        order = np.arange(1, len(self.places) + 1)
        flat[self.places] = order
        once = bool((flat[self.places] == order).all())
        flat[self.places] = self.numbers if once else 0
        return once

    def undo(self) -> None:
        """Clear the places again."""
        self.grid.reshape(-1)[self.places] = 0


@dataclass
class LayoutInfo:
    """What the layout block said.

    ``code_at`` [y, x] counts the ``codes`` of PEs from 1, ``configs_at`` of a color the
    ``configs``; 0 is none. What groups of iterations say is pending until it is committed.
    """

    width: int = 0
    height: int = 0
    fabric: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (4, 1)
    exports: dict[str, Type] = field(default_factory=dict)
    file: str = ""
    codes: list[TileCode] = field(default_factory=list)
    configs: list[ColorConfig] = field(default_factory=list)
    code_at: Any = None
    configs_at: dict[int, Any] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _pending: list[_Pending] = field(default_factory=list)

    def open(self, width: int, height: int) -> None:
        """Make the grid of PEs."""
        self.width, self.height = width, height
        self.code_at = np.zeros((height, width), np.int32)

    def grid_of(self, color: int) -> Any:
        """The configurations of a color, by PE."""
        if color not in self.configs_at:
            self.configs_at[color] = np.zeros((self.height, self.width), np.int32)
        return self.configs_at[color]

    @property
    def routes(self) -> Routes:
        """All configurations, in the order of the colors and PEs that have them first.

        Those that differ only in where they were written are one.
        """
        known: dict[ColorConfig, int] = {}
        shared = np.full(len(self.configs) + 1, -1, np.int32)
        grids = {}
        for color, grid in sorted(self.configs_at.items()):
            used, first = np.unique(grid, return_index=True)
            for number in used[np.argsort(first)].tolist():
                if number:
                    shared[number] = known.setdefault(self.configs[number - 1], len(known))
            if used.any():
                grids[color] = shared[grid]
        return Routes(list(known), grids)

    # --- one PE ---

    def place_code(self, x: int, y: int, path: str, params: dict[str, Val], span: Span) -> None:
        """The code of a PE, which must not have one."""
        self.code_at[y, x] = self._code_number(path, params, span)

    def configure(self, x: int, y: int, color: int, config: ColorConfig) -> None:
        """The route of a color at a PE, which must not have one."""
        self.grid_of(color)[y, x] = self._config_number(config)

    def _code_number(self, path: str, params: dict[str, Val], span: Span) -> int:
        key = (path, frozen(params), span.source.name, span.line, span.column)
        if key not in self._numbers:
            self.codes.append(TileCode(path, params, span))
            self._numbers[key] = len(self.codes)
        return self._numbers[key]

    def _config_number(self, config: ColorConfig) -> int:
        key = (config, config.place)
        if key not in self._numbers:
            self.configs.append(config)
            self._numbers[key] = len(self.configs)
        return self._numbers[key]

    # --- the PEs of a group of iterations ---

    def place_codes(
        self, points: Points, at: tuple[Any, Any], path: str, params: dict[str, Val], span: Span
    ) -> None:
        """The code of the PEs ``at`` which a group of iterations places it."""
        numbers = np.empty(points.count, np.int32)
        for given, chosen in _by_values(params, points):
            numbers[chosen] = self._code_number(path, given, span)
        self._pending.append(_Pending(self.code_at, self._places(points, at), numbers))

    def configure_all(
        self, points: Points, at: tuple[Any, Any], color: int, config: ColorConfig
    ) -> None:
        """The route of a color at the PEs ``at`` which a group of iterations configures it."""
        number = self._config_number(config)
        self._pending.append(_Pending(self.grid_of(color), self._places(points, at), number))

    def _places(self, points: Points, at: tuple[Any, Any]) -> Any:
        x, y = (values_at(points, number) for number in at)
        return y * self.width + x

    def mark(self) -> int:
        """The present end of what is pending."""
        return len(self._pending)

    def rollback(self, mark: int) -> None:
        """Forget what became pending after ``mark``."""
        del self._pending[mark:]

    def commit(self) -> None:
        """Make what is pending. Raises Ungroupable, with nothing made, when a PE has it already."""
        for position, pending in enumerate(self._pending):
            if not pending.make():
                for made in self._pending[:position]:
                    made.undo()
                raise Ungroupable
        self._pending.clear()


def _by_values(params: dict[str, Val], points: Points) -> Iterator[tuple[dict[str, Val], Any]]:
    """The different parameters that points have, each with the numbers of its points."""
    found = {id(number): values_at(points, number) for number in _lanes_in(params)}
    for chosen in alike(list(found.values()), points.count):
        picked = {at: values[chosen[0]].item() for at, values in found.items()}
        yield _with(params, picked), chosen


def _lanes_in(value: Any) -> Iterator[Lanes]:
    if type(value) is Lanes:
        yield value
        return
    match value:
        case Val():
            yield from _lanes_in(value.v)
        case dict():
            for part in value.values():
                yield from _lanes_in(part)
        case list() | tuple():
            for part in value:
                yield from _lanes_in(part)
        case RangeVal():
            yield from _lanes_in([value.low, value.high, value.step])
        case Module() | FnVal():
            raise Ungroupable  # a module that was opened here may hold anything


def _with(value: Any, picked: dict[int, Any]) -> Any:
    """``value`` with numbers in the place of lanes."""
    if type(value) is Lanes:
        return picked[id(value)]
    match value:
        case Val():
            return Val(value.type, _with(value.v, picked), value.known, value.home)
        case dict():
            return {name: _with(part, picked) for name, part in value.items()}
        case list():
            return [_with(part, picked) for part in value]
        case RangeVal():
            parts = (_with(part, picked) for part in (value.low, value.high, value.step))
            return RangeVal(value.type, *parts)
    return value
