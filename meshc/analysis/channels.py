"""Geometry of channels: along which axis they run, who sends, who receives, which hops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshc.analysis.turns import turns_of
from meshc.ir.affine import Expr
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel


@dataclass(frozen=True)
class Line:
    """A channel as messages on one line of the mesh: every row or column looks alike.

    ``pairs`` are (sender, receiver) positions; ``axis`` is an axis of the mesh.
    """

    axis: str
    pairs: tuple[tuple[int, int], ...]
    multicast: bool

    @cached_property
    def senders(self) -> frozenset[int]:
        """Positions that send."""
        return frozenset(s for s, _ in self.pairs)

    @cached_property
    def receivers(self) -> frozenset[int]:
        """Positions that receive."""
        return frozenset(t for _, t in self.pairs)

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

    A channel from the last column of a region to the first of the next counts by its ends. Of one
    with turns ``pairs`` are only as many as make up its senders, receivers and longest ways.
    """
    route = channel.route
    if len(route.inputs) > 2:
        if all(p.outputs[2] == Expr.const(0) for p in route.pieces):
            return Line(mesh.across, ((mesh.columns - 1, 0),), channel.multicast)
        pairs = tuple((r, r + 1) for r in range(mesh.regions - 1))
        return Line(mesh.names[0], pairs, channel.multicast)
    turns = turns_of(channel, mesh)
    if turns is not None:
        return Line(turns.axis, turns.pairs, channel.multicast)
    down = all(p.outputs[1] == Expr.var(mesh.across) for p in route.pieces)
    shape = (mesh.rows, 1) if down else (1, mesh.columns)
    place = 0 if down else 1
    sources, targets = (ends[:, place] for ends in route.pairs(shape))
    inside = (targets >= 0) & (targets < shape[place])
    pairs = tuple(zip(sources[inside].tolist(), targets[inside].tolist(), strict=True))
    return Line(mesh.plane[place], pairs, channel.multicast)


def shares_core(one: frozenset[int], other: frozenset[int], axes: tuple[str, str]) -> bool:
    """Whether some core belongs to both sets of positions, given on lines of ``axes``."""
    if axes[0] == axes[1]:
        return bool(one & other)
    return bool(one) and bool(other)
