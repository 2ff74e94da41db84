"""A compiled CSL program: what ``cslc`` writes and the machine runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshc.sim import ir
from meshc.sim.grids import Routes, Tiles
from meshc.sim.route_configs import ColorConfig
from meshc.sim.sema.unit import Export


@dataclass
class PeSymbol:
    """A named stretch of PE memory."""

    name: str
    addr: int
    size: int


@dataclass
class PeProgram:
    """The code and data that PEs of one class share.

    Task tables map ids to function names. ``image`` holds (address, bytes) of initial data.
    """

    name: str
    arch: str
    end: int
    symbols: list[PeSymbol]
    image: list[tuple[int, bytes]]
    slots: list[Any]
    functions: list[ir.Function]
    data_tasks: dict[int, str]
    local_tasks: dict[int, str]
    control_tasks: dict[int, str]
    teardown: dict[int, str]
    empty_handlers: dict[int, str]
    in_queues: dict[int, int]
    out_queues: dict[int, int]
    activated: list[tuple[str, int]]
    blocked: list[tuple[str, int]]
    unblocked: list[tuple[str, int]]
    exports: dict[str, Export]
    dsr_loads: list[ir.LoadDsr]
    color_configs: dict[int, ColorConfig]
    settings: list[tuple[int, int]]
    fifos: int
    strings: list[str]
    trace_buffers: dict[str, int]
    ports: dict[int, str]
    order: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Index the symbols by address."""
        self.order = sorted(range(len(self.symbols)), key=lambda i: self.symbols[i].addr)
        self.starts = [self.symbols[i].addr for i in self.order]


@dataclass
class Link:
    """A virtual connection of two ports: (x, y, color) and direction at either end, and hops."""

    source: tuple[int, int, int]
    exit: int
    target: tuple[int, int, int]
    entry: int
    hops: int


@dataclass
class Program:
    """A whole program. ``tiles`` maps (x, y) to a class; coordinates are those of the layout.

    Tiles and routes may be given as any mapping; they are kept as arrays.
    """

    arch: str
    width: int
    height: int
    fabric: tuple[int, int]
    offsets: tuple[int, int]
    classes: list[PeProgram]
    tiles: Tiles
    routes: Routes
    exports: list[str]
    params: dict[str, str]
    preload: dict[tuple[int, int], dict[str, bytes]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    streams: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    ports: list[tuple[tuple[int, int, int], int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make arrays of other mappings."""
        if not isinstance(self.tiles, Tiles):
            self.tiles = Tiles.of(self.tiles)
        if not isinstance(self.routes, Routes):
            self.routes = Routes.of(self.routes)
