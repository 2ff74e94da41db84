"""Channels on which the cores of a line send in turn: multicasts with a moving root.

All cores of a line that lie after the sender hear it on a channel that goes ``up``; on one that
goes ``down`` all before it do, and the sender itself. Together the two bring what each core of a
line has to all of them. A router forwards one color to two outputs only as it was configured first
(a switch position replaces an input or the outputs by one direction), so that each way takes a
color; ``docs/csl.md`` has the table of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel
from meshc.support.diagnostics import fail

UP, DOWN = 1, -1


@dataclass(frozen=True)
class Turns:
    """A channel with turns: the axis of its lines, their length, which way it goes, and how many
    messages a core sends when its turn comes."""

    axis: str
    size: int
    way: int
    each: int

    @property
    def messages(self) -> int:
        """Messages of a line until every core has had its turn."""
        return self.size * self.each

    def sends(self, step: Expr) -> Cond:
        """Where message ``step`` of a round comes from: nowhere at the last core going up, which
        has nobody behind it."""
        here = Expr.var(self.axis)
        mine = Cond.eq(here, step // self.each) & Cond.between(0, step, self.messages)
        return mine & Cond.le(here, self.size - 2) if self.way > 0 else mine

    def hears(self, root: Expr) -> Cond:
        """Who hears the core at ``root``."""
        here = Expr.var(self.axis)
        return Cond.gt(here, root) if self.way > 0 else Cond.le(here, root)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of sender and receiver among which all senders, receivers and longest ways are;
        as many as twice the length of the line, of its square."""
        last = self.size - 1
        if self.way > 0:
            found = {(0, place) for place in range(1, self.size)}
            found |= {(place, last) for place in range(last)}
        else:
            found = {(last, place) for place in range(self.size)}
            found |= {(place, 0) for place in range(self.size)}
        return tuple(sorted(found))


def turn_route(mesh: Mesh, axis: str, way: int) -> AffineMap:
    """The route of a channel with turns along ``axis``, one of the plane."""
    here, far = Expr.var(axis), Expr.var(f"_{axis}")
    if way > 0:
        reach = Cond.gt(far, here) & Cond.lt(far, mesh.size(axis))
    else:
        reach = Cond.between(0, far, here + 1)
    outputs = tuple(far if name == axis else Expr.var(name) for name in mesh.plane)
    return AffineMap.of(mesh.plane, [(outputs, reach)])


def turns_of(channel: Channel, mesh: Mesh) -> Turns | None:
    """What is known of ``channel`` if it has turns. Raises ``bad-turns`` for other routes."""
    if not channel.turns:
        return None
    for axis in mesh.plane:
        for way in (UP, DOWN):
            if channel.multicast and channel.route == turn_route(mesh, axis, way):
                return Turns(axis, mesh.size(axis), way, channel.turns)
    fail(
        "bad-turns",
        f"the cores of @{channel.name} cannot take turns: it is no multicast along a whole line",
        notes=(
            str(channel.route),
            f"along {mesh.across} it would be '{turn_route(mesh, mesh.across, UP)}' or "
            f"'{turn_route(mesh, mesh.across, DOWN)}'",
        ),
    )
