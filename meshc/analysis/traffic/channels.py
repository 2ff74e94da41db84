"""Geometry of channels: along which axis they run, who sends, who receives, which hops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshc.analysis.traffic.turns import turns_of
from meshc.ir.affine import AffineMap, Cond, Expr, IntArray
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel

Ends = Mapping[str, frozenset[int]]
"""Cores by their positions on some axes; on others they may be anywhere."""

_LINES = 256
"""How many lines are remembered: passes and checks ask for those of a program again and again."""


@dataclass(frozen=True)
class Line:
    """A channel as messages on one line of the mesh: every row or column looks alike.

    ``pairs`` are (sender, receiver) positions; ``axis`` is an axis of the mesh. A channel from
    region to region is a line of regions; ``edge`` is then the axis of the plane across whose edge
    its messages go, with the positions there of those that send and of those that receive.
    """

    axis: str
    pairs: tuple[tuple[int, int], ...]
    multicast: bool
    edge: tuple[str, frozenset[int], frozenset[int]] | None = None

    @cached_property
    def senders(self) -> frozenset[int]:
        """Positions that send."""
        return frozenset(s for s, _ in self.pairs)

    @cached_property
    def receivers(self) -> frozenset[int]:
        """Positions that receive."""
        return frozenset(t for _, t in self.pairs)

    @cached_property
    def sending(self) -> Ends:
        """What is known of the positions of the cores that send, by axis."""
        known = {self.axis: self.senders}
        return known | {self.edge[0]: self.edge[1]} if self.edge else known

    @cached_property
    def receiving(self) -> Ends:
        """What is known of the positions of the cores that receive, by axis."""
        known = {self.axis: self.receivers}
        return known | {self.edge[0]: self.edge[2]} if self.edge else known

    def messages(self) -> dict[int, list[int]]:
        """Routers that the message of each sender touches, both ends included."""
        touched: dict[int, list[int]] = {}
        for sender, receiver in self.pairs:
            low, high = sorted((sender, receiver))
            old = touched.get(sender, [low, high])
            touched[sender] = [min(low, old[0]), max(high, old[-1])]
        return touched

    @property
    def hops(self) -> int:
        """Longest way of a message."""
        return max((abs(s - t) for s, t in self.pairs), default=0)


def line_of(channel: Channel, mesh: Mesh) -> Line:
    """The channel on one line; cost grows with the length of the axis, not with the mesh.

    Of a channel with turns ``pairs`` are only as many as make up its senders, receivers and longest
    ways.
    """
    route = channel.route
    if len(route.inputs) > 2:
        return _line_of_regions(channel, mesh)
    turns = turns_of(channel, mesh)
    if turns is not None:
        return Line(turns.axis, turns.pairs, channel.multicast)
    return _line_of_plane(route, channel.multicast, mesh)


@lru_cache(_LINES)
def _line_of_plane(route: AffineMap, multicast: bool, mesh: Mesh) -> Line:
    """The line of a channel on the plane whose cores do not take turns."""
    down = all(p.outputs[1] == Expr.var(mesh.across) for p in route.pieces)
    shape = (mesh.rows, 1) if down else (1, mesh.columns)
    place = 0 if down else 1
    sources, targets = (ends[:, place] for ends in route.pairs(shape))
    inside = (targets >= 0) & (targets < shape[place])
    pairs = tuple(zip(sources[inside].tolist(), targets[inside].tolist(), strict=True))
    return Line(mesh.plane[place], pairs, multicast)


def crossed_axis(channel: Channel, mesh: Mesh) -> str:
    """The axis of the plane over whose edge a channel from region to region goes, or nothing where
    each core sends to its counterpart."""
    changed = [
        axis
        for place, axis in enumerate(mesh.plane, start=1)
        if any(p.outputs[place] != Expr.var(axis) for p in channel.route.pieces)
    ]
    return changed[0] if changed else ""


def crossings(channel: Channel, mesh: Mesh) -> tuple[IntArray, IntArray]:
    """Senders and receivers (region, row, column) of a channel from region to region, on one line
    of the axis that it crosses: all others look alike."""
    axis = crossed_axis(channel, mesh)
    fixed = (name for name in mesh.plane if name != axis)
    line = channel.route.where(Cond.all(Cond.eq(Expr.var(name), 0) for name in fixed))
    sizes = (mesh.size(name) if name == axis else 1 for name in mesh.plane)
    return line.pairs((mesh.regions, *sizes))


def _line_of_regions(channel: Channel, mesh: Mesh) -> Line:
    sources, targets = crossings(channel, mesh)
    pairs = sorted(set(zip(sources[:, 0].tolist(), targets[:, 0].tolist(), strict=True)))
    axis, edge = crossed_axis(channel, mesh), None
    if axis:
        place = 1 + mesh.plane.index(axis)
        ends = (frozenset[int](points[:, place].tolist()) for points in (sources, targets))
        edge = (axis, *ends)
    return Line(mesh.outer, tuple(pairs), channel.multicast, edge)  # type: ignore[arg-type]


def shares_core(one: Ends, other: Ends) -> bool:
    """Whether some core belongs to both."""
    if not all([*one.values(), *other.values()]):
        return False
    return all(one[axis] & other[axis] for axis in one.keys() & other.keys())
