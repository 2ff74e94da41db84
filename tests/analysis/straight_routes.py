"""Routes of channels: which routers a message touches, and where two messages would collide.

A router holds one configuration per color, so two different messages that touch one router need
different colors, also where the router only passes them on (R of PLMR).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.proofs.isl import EVERYWHERE, Link, Point, Scope, solve, target
from meshc.analysis.proofs.isltext import Writer, lexicographically_less
from meshc.ir.affine import AffineMap, Piecewise

_COLOR = "~c"


@dataclass(frozen=True)
class Route:
    """How a channel's messages travel: from source to target, on a color that the source gives.

    ``color`` is a function of the source's coordinates. A message goes straight along each axis of
    ``order`` in turn (default: the map's inputs, last first) and touches every router on its way,
    both ends included.
    """

    map: AffineMap
    color: Piecewise
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class RouterConflict:
    """Two messages of one color at one router, by their sources."""

    router: Point
    color: int
    first: Point
    second: Point


def shared_router(
    first: Route, second: Route | None = None, scope: Scope = EVERYWHERE
) -> RouterConflict | None:
    """A router that messages of both routes touch with one color; None when there is none.

    Without ``second``: two messages of ``first`` from different sources. A multicast is one
    message. Scalars (also loop variables) are taken equal on both sides.
    """
    rival = second or first
    one, other = _Ends.of(first.map.inputs, "1"), _Ends.of(rival.map.inputs, "2")
    routers = tuple(f"{n}~r" for n in first.map.inputs)
    scalars = _scalars((first, rival), scope)
    space = (*routers, _COLOR, *one.names, *other.names, *scalars)
    formula = f"{_message(first, one, routers, space, scope)} and "
    formula += _message(rival, other, routers, space, scope)
    if second is None:
        ids = Writer({}, space).ids
        sides = [[ids[n] for n in ends.sources] for ends in (one, other)]
        formula += f" and ({lexicographically_less(*sides)})"
    point = solve(space, formula)
    return None if point is None else _conflict(point, first.map.inputs, routers, one, other)


def color_mismatch(route: Route, receive: Piecewise, scope: Scope = EVERYWHERE) -> Link | None:
    """A pair whose color at the source is not the one ``receive`` gives at the target.

    Also a pair for which one of the two is undefined.
    """
    inputs = route.map.inputs
    targets = tuple(target(n) for n in inputs)
    used = route.map.free_vars | route.color.free_vars | receive.free_vars
    scalars = tuple(sorted((used | scope.bounds.free_vars) - set(inputs)))
    space = (*inputs, *targets, *scalars)
    send, recv = Writer(scope.functions, space), Writer(scope.functions, space)
    recv.ids |= {n: recv.ids[t] for n, t in zip(inputs, targets, strict=True)}
    pairs = f"({send.relation(route.map, targets)}) and ({send.cond(scope.bounds)})"
    agree = f"exists (e : {send.graph('e', route.color)} and {recv.graph('e', receive)})"
    point = solve(space, pairs, agree)
    if point is None:
        return None
    ends = {n: point[n] for n in inputs}, {n: point[target(n)] for n in inputs}
    return Link(*ends, {n: point[n] for n in scalars})


@dataclass(frozen=True)
class _Ends:
    """Names of the source and target coordinates of one message in a common space."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]

    @staticmethod
    def of(inputs: Sequence[str], mark: str) -> _Ends:
        # No name of a user has a tilde.
        return _Ends(tuple(f"{n}~s{mark}" for n in inputs), tuple(f"{n}~t{mark}" for n in inputs))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sources, *self.targets)


def _scalars(routes: Sequence[Route], scope: Scope) -> tuple[str, ...]:
    used = {n for r in routes for n in r.map.free_vars | r.color.free_vars}
    return tuple(sorted((used | scope.bounds.free_vars) - set(routes[0].map.inputs)))


def _conflict(
    point: Point, inputs: Sequence[str], routers: Sequence[str], one: _Ends, other: _Ends
) -> RouterConflict:
    def named(names: Sequence[str]) -> Point:
        return {n: point[m] for n, m in zip(inputs, names, strict=True)}

    return RouterConflict(named(routers), point[_COLOR], named(one.sources), named(other.sources))


def _message(
    route: Route, ends: _Ends, routers: Sequence[str], space: Sequence[str], scope: Scope
) -> str:
    """Source and target are a pair of the map, the color fits, the router is on the way."""
    writer = Writer(scope.functions, space)
    ids = dict(writer.ids)
    writer.ids |= {n: ids[s] for n, s in zip(route.map.inputs, ends.sources, strict=True)}
    pair = f"({writer.relation(route.map, ends.targets)}) and ({writer.cond(scope.bounds)})"
    color = writer.graph(ids[_COLOR], route.color)
    way = _way(route, [[ids[n] for n in side] for side in (ends.sources, ends.targets, routers)])
    return f"{pair} and {color} and ({way})"


def _way(route: Route, ids: Sequence[Sequence[str]]) -> str:
    """The router lies on one leg: past axes are at the target, later ones at the source."""
    order = route.order or tuple(reversed(route.map.inputs))
    place = {name: i for i, name in enumerate(route.map.inputs)}
    start, end, router = ids
    legs = []
    for step, axis in enumerate(order):
        at = place[axis]
        done, ahead = order[:step], order[step + 1 :]
        fixed = [f"{router[place[n]]} = {end[place[n]]}" for n in done]
        fixed += [f"{router[place[n]]} = {start[place[n]]}" for n in ahead]
        for low, high in ((start, end), (end, start)):
            between = f"{low[at]} <= {router[at]} <= {high[at]}"
            legs.append("(" + " and ".join([*fixed, between]) + ")")
    return " or ".join(legs)
