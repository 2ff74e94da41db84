"""The layout API: code regions, painted routes, ports, connections, streams."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim.csl_compiler import compile_pe
from meshc.sim.csl_files import Loader
from meshc.sim.grids import Routes, Tiles
from meshc.sim.host.platforms import FP16TYPE, HALF, SdkExecutionPlatform, SdkTarget
from meshc.sim.program import Link, PeProgram, Program
from meshc.sim.route_configs import EAST, NORTH, RAMP, SOUTH, WEST, ColorConfig
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.frozen import frozen
from meshc.sim.sema.values import Val
from meshc.sim.stored_programs import save_program
from meshc.support.diagnostics import fail

_COLORS = 24


class Route(IntEnum):
    """Directions at a router."""

    RAMP = 0
    EAST = 1
    WEST = 2
    NORTH = 3
    SOUTH = 4


class Edge(IntEnum):
    """Edges of a region."""

    TOP = 0
    BOTTOM = 1
    LEFT = 2
    RIGHT = 3


_EDGE_DIRECTION = {Edge.TOP: NORTH, Edge.BOTTOM: SOUTH, Edge.LEFT: WEST, Edge.RIGHT: EAST}


@dataclass(frozen=True)
class IntVector:
    """A position."""

    x: int
    y: int


@dataclass(frozen=True)
class IntRectangle:
    """Positions from ``ul`` up to but without ``lr``."""

    ul: IntVector
    lr: IntVector

    def points(self) -> Iterator[tuple[int, int]]:
        """All positions, row by row."""
        for y in range(self.ul.y, self.lr.y):
            for x in range(self.ul.x, self.lr.x):
                yield x, y


class Color:
    """A color by name; the layout chooses its number unless given."""

    def __init__(self, name: str, value: int | None = None, region: Any = None) -> None:
        self.name, self.value, self.region = name, value, region

    def get_local_param_name(self) -> str:
        """The parameter that ``set_param`` gives the color to."""
        return self.name

    def get_global_name(self) -> str:
        """A name that no other color has."""
        return self.name if self.region is None else f"{self.region.name}_{self.name}"

    def get_value(self) -> int | None:
        """The number that the color was given, None when the layout chooses it."""
        return self.value

    @property
    def identity(self) -> Any:
        """Global colors are the same where their names are."""
        return (self.name, id(self.region) if self.region is not None else None)


class RoutingPosition:
    """One switch position: inputs and outputs."""

    def __init__(self) -> None:
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()

    def set_input(self, routes: list[Route]) -> RoutingPosition:
        """Set the inputs."""
        self.inputs = tuple(int(r) for r in routes)
        return self

    def set_output(self, routes: list[Route]) -> RoutingPosition:
        """Set the outputs."""
        self.outputs = tuple(int(r) for r in routes)
        return self

    def add_input(self, route: Route) -> RoutingPosition:
        """Add an input."""
        self.inputs = (*self.inputs, int(route))
        return self

    def add_output(self, route: Route) -> RoutingPosition:
        """Add an output."""
        self.outputs = (*self.outputs, int(route))
        return self

    def get_input(self) -> list[Route]:
        """The inputs."""
        return [Route(r) for r in self.inputs]

    def get_output(self) -> list[Route]:
        """The outputs."""
        return [Route(r) for r in self.outputs]


@dataclass
class EdgeRouting:
    """Other positions for the PEs of one edge."""

    edge: Edge
    positions: list[RoutingPosition]


def get_edge_routing(edge: Edge, positions: list[RoutingPosition]) -> EdgeRouting:
    """Positions that replace those of a ``paint_all`` along an edge."""
    return EdgeRouting(edge, positions)


@dataclass(eq=False)
class Port:
    """A port of a region: the PEs of one edge and a color."""

    region: CodeRegion
    color: Color
    edge: Edge
    size: int
    is_input: bool
    name: str


@dataclass(eq=False)
class CodeRegion:
    """A rectangle of PEs that run one file."""

    path: str
    name: str
    width: int
    height: int
    at: tuple[int, int] = (0, 0)
    params: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    routes: dict[tuple[int, int, Any], tuple[Color, list[RoutingPosition]]] = field(
        default_factory=dict
    )
    symbols: list[tuple[str, Any, int, int]] = field(default_factory=list)

    def points(self) -> Iterator[tuple[int, int]]:
        """All positions in the region's own coordinates."""
        return IntRectangle(IntVector(0, 0), IntVector(self.width, self.height)).points()

    def place(self, x: int, y: int) -> None:
        """Put the region's upper left PE at (x, y). Raises MeshcError for negative numbers."""
        if x < 0 or y < 0:
            fail("csl-host", f"a region cannot be placed at ({x}, {y})")
        self.at = (x, y)

    def color(self, name: str, value: int | None = None) -> Color:
        """A color of this region only."""
        return Color(name, value, self)

    def _bind(self, points: Iterator[tuple[int, int]], args: tuple[Any, ...]) -> None:
        name, value = (args[0].name, args[0]) if len(args) == 1 else args
        for point in points:
            self.params.setdefault(point, {})[name] = value

    def set_param_all(self, *args: Any) -> None:
        """Set a parameter on all PEs: (name, value) or (color)."""
        self._bind(self.points(), args)

    def set_param(self, at: IntVector, *args: Any) -> None:
        """Set a parameter on one PE."""
        self._bind(iter([(at.x, at.y)]), args)

    def set_param_range(self, where: IntRectangle, *args: Any) -> None:
        """Set a parameter on the PEs of a rectangle."""
        self._bind(where.points(), args)

    def paint(self, at: IntVector, color: Color, positions: list[RoutingPosition]) -> None:
        """Set the route of a color on one PE."""
        self.routes[at.x, at.y, color.identity] = (color, positions)

    def paint_range(
        self, where: IntRectangle, color: Color, positions: list[RoutingPosition]
    ) -> None:
        """Set the route of a color on the PEs of a rectangle."""
        for x, y in where.points():
            self.routes[x, y, color.identity] = (color, positions)

    def paint_all(
        self, color: Color, positions: list[RoutingPosition], edges: list[EdgeRouting] | None = None
    ) -> None:
        """Set the route of a color on all PEs, with exceptions along edges."""
        for x, y in self.points():
            self.routes[x, y, color.identity] = (color, positions)
        for other in edges or []:
            for x, y in self.edge_points(other.edge):
                self.routes[x, y, color.identity] = (color, other.positions)

    def edge_points(self, edge: Edge) -> list[tuple[int, int]]:
        """The PEs of an edge in order."""
        if edge in (Edge.TOP, Edge.BOTTOM):
            y = 0 if edge == Edge.TOP else self.height - 1
            return [(x, y) for x in range(self.width)]
        x = 0 if edge == Edge.LEFT else self.width - 1
        return [(x, y) for y in range(self.height)]

    def create_input_port(
        self, color: Color, edge: Edge, positions: list[RoutingPosition], size: int, name: str = ""
    ) -> Port:
        """A port through which wavelets come in over an edge."""
        return self._port(color, edge, positions, size, True, name)

    def create_output_port(
        self, color: Color, edge: Edge, positions: list[RoutingPosition], size: int, name: str = ""
    ) -> Port:
        """A port through which wavelets go out over an edge."""
        return self._port(color, edge, positions, size, False, name)

    def _port(
        self, color: Color, edge: Edge, positions: list[RoutingPosition], size: int,
        is_input: bool, name: str,
    ) -> Port:  # fmt: skip
        direction = _EDGE_DIRECTION[edge]
        completed = []
        for position in positions:
            free = position.inputs if is_input else position.outputs
            if free:
                fail("csl-host", "the outer side of a port position must be left free")
            full = RoutingPosition()
            full.inputs = (direction,) if is_input else position.inputs
            full.outputs = position.outputs if is_input else (direction,)
            completed.append(full)
        for x, y in self.edge_points(edge):
            self.routes[x, y, color.identity] = (color, completed)
        return Port(self, color, edge, size, is_input, name or f"{self.name}_{color.name}")

    def set_symbol_all(self, name: str, array: Any, x_size: int, y_size: int) -> None:
        """Spread a matrix of y_size by x_size elements over the region as initial data."""
        self.symbols.append((name, np.asarray(array), x_size, y_size))


class SdkLayout:
    """Regions and their connections."""

    def __init__(
        self, platform: SdkExecutionPlatform | SdkTarget, msg_level: str = "WARNING"
    ) -> None:
        target = platform if isinstance(platform, SdkTarget) else platform.target
        self.arch = "wse3" if target == SdkTarget.WSE3 else "wse2"
        self.regions: list[CodeRegion] = []
        self.links: list[tuple[Port, Port]] = []
        self.streams: list[tuple[str, Port]] = []
        self.direct_streams: list[tuple[str, IntVector, Color, bool]] = []
        self.half = HALF[FP16TYPE.F16]

    def create_code_region(self, path: str, name: str, width: int, height: int) -> CodeRegion:
        """A region of ``width`` by ``height`` PEs that run ``path``."""
        self.regions.append(CodeRegion(path, name, width, height))
        return self.regions[-1]

    def connect(self, source: Port, target: Port) -> None:
        """Join an output port and an input port."""
        if source.is_input or not target.is_input:
            fail("csl-host", "connect needs an output port and an input port, in this order")
        if source.size != target.size:
            fail("csl-host", f"the ports expect {source.size} and {target.size} wavelets")
        self.links.append((source, target))

    def create_input_stream(self, port: Port, *_: Any, **__: Any) -> str:
        """A stream from the host to a port; its name is for ``send``."""
        return self._stream(port, "in")

    def create_output_stream(self, port: Port, *_: Any, **__: Any) -> str:
        """A stream from a port to the host; its name is for ``receive``."""
        return self._stream(port, "out")

    def create_input_stream_from_loc(self, loc: IntVector, color: Color, prefix: str = "") -> str:
        """A stream from the host to the PE at ``loc``, which takes ``color`` from one side."""
        return self._direct(loc, color, prefix, True)

    def create_output_stream_from_loc(self, loc: IntVector, color: Color, prefix: str = "") -> str:
        """A stream to the host from the PE at ``loc``, which sends ``color`` to one side."""
        return self._direct(loc, color, prefix, False)

    def _direct(self, loc: IntVector, color: Color, prefix: str, is_input: bool) -> str:
        number = len(self.streams) + len(self.direct_streams)
        name = f"{prefix or color.get_global_name()}_{'in' if is_input else 'out'}_{number}"
        self.direct_streams.append((name, loc, color, is_input))
        return name

    def hstack(self, children: list[CodeRegion], origin: IntVector | None = None) -> int:
        """Place regions side by side, from the first one's place or ``origin`` on; their width."""
        x, y = children[0].at if origin is None else (origin.x, origin.y)
        start = x
        for child in children:
            child.place(x, y)
            x += child.width
        return x - start

    def vstack(self, children: list[CodeRegion], origin: IntVector | None = None) -> int:
        """Place regions one below the other; their height."""
        x, y = children[0].at if origin is None else (origin.x, origin.y)
        start = y
        for child in children:
            child.place(x, y)
            y += child.height
        return y - start

    def _stream(self, port: Port, kind: str) -> str:
        name = f"{port.name}_{kind}_{len(self.streams) + len(self.direct_streams)}"
        if len(port.region.edge_points(port.edge)) != 1:
            fail("csl-host", "a host stream needs a port of one PE")
        self.streams.append((name, port))
        return name

    def compile(
        self, out_prefix: str = "out", libs: Sequence[str] = (), cslc_prefix: str = "",
        save_port_map: bool = False, f16_type: FP16TYPE = FP16TYPE.F16,
    ) -> str:  # fmt: skip
        """Compile all regions; the result is what SdkRuntime takes. Raises MeshcError.

        ``cslc_prefix`` is that of another compiler; streams are always saved with the program.
        """
        self.half = HALF[f16_type]
        numbers = self._color_numbers()
        program = Program(
            self.arch, 0, 0, (0, 0), (0, 0), [], Tiles.of({}), Routes.of({}), [], {}
        )  # fmt: skip
        loader = Loader(os.getcwd(), libs)
        known: dict[Any, int] = {}
        tiles: dict[tuple[int, int], int] = {}
        routes: dict[tuple[int, int, int], ColorConfig] = {}
        for region in self.regions:
            tiles |= self._compile_region(region, program, loader, known, numbers, tiles)
            for (x, y, identity), painted in region.routes.items():
                at = (region.at[0] + x, region.at[1] + y)
                if min(at) >= 0:  # nothing is there that could send or receive
                    routes[(*at, numbers[identity])] = _config(painted[1])
        for source, target in self.links:
            self._link(source, target, program, numbers)
        for name, port in self.streams:
            x, y = port.region.edge_points(port.edge)[0]
            key = self._key(port, (x, y), numbers)
            program.streams[name] = key
            program.ports.append((key, _EDGE_DIRECTION[port.edge], port.is_input))
        for name, loc, color, is_input in self.direct_streams:
            key = (loc.x, loc.y, numbers.get(color.identity, -1))
            program.streams[name] = key
            program.ports.append((key, _side(routes.get(key), name, is_input), is_input))
        program.tiles, program.routes = Tiles.of(tiles), Routes.of(routes)
        program.height, program.width = program.tiles.classes.shape
        program.exports = sorted({name for c in program.classes for name in c.exports})
        folder = Path(out_prefix)
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        save_program(program, folder)
        (folder / "out.json").write_text(json.dumps({"params": {}}), encoding="utf-8")
        return str(folder)

    def _color_numbers(self) -> dict[Any, int]:
        """Numbers for all colors: global ones first, then those of each region."""
        seen: dict[Any, Color] = {}
        for region in self.regions:
            bound = [v for p in region.params.values() for v in p.values()]
            for color in [*bound, *(c for c, _ in region.routes.values())]:
                if isinstance(color, Color):
                    seen.setdefault(color.identity, color)
        taken = {c.value for c in seen.values() if c.value is not None}
        numbers: dict[Any, int] = {}
        free = itertools.count()
        ordered = sorted(seen.values(), key=lambda c: c.region is not None)
        per_region: dict[int, itertools.count[int]] = {}
        start = 0
        for color in ordered:
            if color.value is not None:
                numbers[color.identity] = color.value
                continue
            counter = free
            if color.region is not None:
                counter = per_region.setdefault(id(color.region), itertools.count(start))
            number = next(n for n in counter if n not in taken)
            if color.region is None:
                start = number + 1
            if number >= _COLORS:
                fail("csl-host", f"there are more than {_COLORS} colors")
            numbers[color.identity] = number
        return numbers

    def _compile_region(
        self, region: CodeRegion, program: Program, loader: Loader, known: dict[Any, int],
        numbers: dict[Any, int], taken: dict[tuple[int, int], int],
    ) -> dict[tuple[int, int], int]:  # fmt: skip
        """The classes of the PEs of a region. ``taken`` are those of other regions."""
        tiles: dict[tuple[int, int], int] = {}
        for point in region.points():
            bindings = {
                name: Val(ty.COLOR, numbers[v.identity])
                if isinstance(v, Color)
                else Val(ty.COMPTIME_INT, int(v))
                for name, v in region.params.get(point, {}).items()
            }
            key = (region.path, frozen(bindings))
            if key not in known:
                known[key] = len(program.classes)
                compiled = compile_pe(loader, self.arch, region.path, bindings, None, self.half)
                program.classes.append(compiled)
            at = (region.at[0] + point[0], region.at[1] + point[1])
            if at in taken:
                fail("csl-host", f"two regions overlap at {at}")
            tiles[at] = known[key]
            self._preload(region, point, at, program, program.classes[known[key]])
        return tiles

    def _preload(
        self, region: CodeRegion, point: tuple[int, int], at: tuple[int, int], program: Program,
        code: PeProgram,
    ) -> None:  # fmt: skip
        for name, array, x_size, y_size in region.symbols:
            symbol = next((s for s in code.symbols if s.name == name), None)
            if symbol is None:
                fail("csl-host", f"'{region.path}' has no symbol '{name}'")
            grid = array.reshape(-1)
            columns = (
                x_size if x_size * y_size * region.width * region.height == grid.size else None
            )
            width = region.width * x_size if columns is not None else x_size
            per_w = width // region.width
            matrix = grid.reshape(-1, width)
            per_h = matrix.shape[0] // region.height
            tile = matrix[point[1] * per_h : (point[1] + 1) * per_h,
                          point[0] * per_w : (point[0] + 1) * per_w]  # fmt: skip
            program.preload.setdefault(at, {})[name] = np.ascontiguousarray(tile).tobytes()

    def _key(
        self, port: Port, point: tuple[int, int], numbers: dict[Any, int]
    ) -> tuple[int, int, int]:
        x, y = port.region.at
        return x + point[0], y + point[1], numbers[port.color.identity]

    def _link(self, source: Port, target: Port, program: Program, numbers: dict[Any, int]) -> None:
        ends = (source.region.edge_points(source.edge), target.region.edge_points(target.edge))
        if len(ends[0]) != len(ends[1]):
            fail("csl-host", f"the ports have {len(ends[0])} and {len(ends[1])} PEs")
        for out_point, in_point in zip(*ends, strict=True):
            a, b = self._key(source, out_point, numbers), self._key(target, in_point, numbers)
            hops = abs(a[0] - b[0]) + abs(a[1] - b[1])
            program.links.append(
                Link(a, _EDGE_DIRECTION[source.edge], b, _EDGE_DIRECTION[target.edge], hops)
            )


def _side(config: ColorConfig | None, name: str, is_input: bool) -> int:
    """The one side from which a router takes a color, or to which it sends it."""
    given = () if config is None else config.rx if is_input else config.tx
    sides = [direction for direction in given if direction != RAMP]
    if len(sides) != 1:
        fail("csl-host", f"stream '{name}' needs a route of its color over one side of the PE")
    return sides[0]


def _config(positions: list[RoutingPosition]) -> ColorConfig:
    first = positions[0]
    switches = tuple((p.inputs or None, p.outputs or None) for p in positions[1:])
    return ColorConfig(first.inputs, first.outputs, switches)
