"""Channels by geometry: rings of ranks, chains, multicasts, the way from region to region."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.layout.coordinates import position
from meshc.analysis.layout.placement import ring_step
from meshc.analysis.layout.tiling import ceil_div
from meshc.analysis.traffic.handovers import Handover
from meshc.analysis.traffic.tracks import Track, chain_track, phases
from meshc.analysis.traffic.turns import turn_route
from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as mesh_ops
from meshc.ir.views import Symbol
from meshc.passes.tile.expand.emitter import Emitter


def ring(emitter: Emitter, axis: str, step: int = -1) -> Symbol:
    """The channel of :func:`ring_route`."""
    name = f"ring_{axis}" if step < 0 else f"back_{axis}"
    return emitter.channel(name, ring_route(emitter.mesh, axis, step))


def ring_route(mesh: Mesh, axis: str, step: int = -1) -> AffineMap:
    """From each rank of ``axis`` to the rank below (``step`` -1) or above, around the ring."""
    here = position(mesh, axis)
    base = _base(mesh, axis)
    pieces: list[tuple[tuple[Expr, Expr], Cond]] = []
    for cond, target in _steps(mesh.size(axis), here, mesh.ring(axis), step):
        pieces.append((_at(mesh, axis, base + target), cond))
    return AffineMap.of(mesh.plane, pieces)


def _steps(size: int, here: Expr, interleaved: bool, step: int) -> list[tuple[Cond, Expr]]:
    """Pieces (where, position of the next rank) on an axis of ``size`` positions."""
    if interleaved:
        around = ring_step(size, step).substitute({"p": here})
        return [(cond, value) for cond, value in around.pieces]
    if step < 0:
        return [(Cond.ge(here, 1), here - 1), (Cond.eq(here, 0), here + (size - 1))]
    return [(Cond.le(here, size - 2), here + 1), (Cond.eq(here, size - 1), here - (size - 1))]


def chain(emitter: Emitter, axis: str, stride: int, group: int) -> Symbol:
    """From each member of a group to the member before it, ``stride`` positions away.

    Reductions whose groups differ share one channel, which goes from every multiple of the stride
    to the one before: who sends on it is for each of them to say.
    """
    mesh = emitter.mesh
    track = chain_track(mesh, axis, stride)
    wanted = _groups_on(emitter.source).get(track, set()) | {(axis, group)}
    senders = {_members(mesh, *each, stride) for each in wanted}
    where, name = _members(mesh, axis, group, stride), axis
    if len(senders) > 1:
        here, name = position(mesh, track.axis), track.axis
        where = Cond.eq(here % stride, 0) & Cond.ge(here, stride)
    along = Expr.var(mesh.whole(axis)) - stride
    route = AffineMap.of(mesh.plane, [(_at(mesh, axis, along), where)])
    return emitter.channel(f"chain_{name}_{stride}", route)


def _groups_on(module: Module) -> dict[Track, set[tuple[str, int]]]:
    """Axes and groups of the reductions that share each chain."""
    mesh, found = module.the_mesh(), dict[Track, set[tuple[str, int]]]()
    for op in module.walk():
        if isinstance(op, (mesh_ops.AllReduce, mesh_ops.Reduce)):
            for stride, group in phases(op.groups):
                shared = found.setdefault(chain_track(mesh, op.axis, stride), set())
                shared.add((op.axis, group))
    return found


def _members(mesh: Mesh, axis: str, group: int, stride: int) -> Cond:
    """Where a core has a member of its group before it."""
    here = position(mesh, axis)
    return Cond.eq(here % stride, 0) & Cond.ge(member(mesh, axis, stride, group), 1)


@dataclass(frozen=True)
class ChainEnds:
    """Cores by what they do in the chains of a phase: among ``members``, who has which end, and who
    ``sends`` (all but roots) and ``receives`` (all but the last)."""

    members: Cond
    last: Cond
    between: Cond
    root: Cond
    sends: Cond
    receives: Cond


def chain_ends(emitter: Emitter, axis: str, stride: int, group: int) -> ChainEnds:
    """Who begins, passes on and ends the chains of :func:`chain`. The last group of a phase may
    be shorter than the others, or a single core, which takes no part."""
    size = emitter.mesh.size(axis)
    here, place = position(emitter.mesh, axis), member(emitter.mesh, axis, stride, group)
    places = ceil_div(size, stride)
    length = min(group, places)
    last, root = Cond.eq(place, length - 1), Cond.eq(place, 0)
    between = Cond.eq(place, 1) if length == 3 else Cond.between(1, place, length - 1)
    sends, receives = Cond.ge(place, 1), Cond.le(place, length - 2)
    if places % length:
        end = Cond.ge(here, size - stride)
        last, between = last | (end & sends), between & ~end
        root = root if places % length > 1 else root & ~end
        receives &= ~end
    return ChainEnds(Cond.eq(here % stride, 0), last, between, root, sends, receives)


def member(mesh: Mesh, axis: str, stride: int, group: int) -> Expr:
    """Place of a core in its group of a phase; place 0 is the group's root."""
    place = position(mesh, axis) // stride
    return place if stride * group >= mesh.size(axis) else place % group


def multicast(emitter: Emitter, axis: str, way: int = 1) -> Symbol:
    """From position 0 of ``axis`` to all others; from its last position where ``way`` is -1."""
    here = position(emitter.mesh, axis)
    size = emitter.mesh.size(axis)
    far = Expr.var(f"_{emitter.mesh.whole(axis)}")
    base = _base(emitter.mesh, axis)
    root, low = (0, base + 1) if way > 0 else (size - 1, base)
    reach = Cond.between(low, far, low + (size - 1))
    route = AffineMap.of(
        emitter.mesh.plane, [(_at(emitter.mesh, axis, far), Cond.eq(here, root) & reach)]
    )
    return emitter.channel(
        f"cast_{axis}" if way > 0 else f"cast_back_{axis}", route, multicast=True
    )


def in_turn(emitter: Emitter, axis: str, way: int, each: int) -> Symbol:
    """From each core of a line in turn, ``each`` messages, to all behind it (``way`` 1) or to all
    before it and itself. The axis must be in natural order."""
    assert not emitter.mesh.ring(axis) or emitter.mesh.size(axis) <= 2
    name = f"turns_{'up' if way > 0 else 'down'}_{axis}"
    route = turn_route(emitter.mesh, axis, way)
    return emitter.channel(name, route, multicast=True, turns=each)


def next_region(emitter: Emitter) -> Symbol:
    """From each region to the next, core to same core."""
    mesh = emitter.mesh
    region, row, column = map(Expr.var, mesh.names)
    where = Cond.le(region, mesh.regions - 2)
    route = AffineMap.of(mesh.names, [((region + 1, row, column), where)])
    return emitter.channel("next_region", route)


def edge(emitter: Emitter, handover: Handover) -> Symbol:
    """Over the edge from each region of ``handover`` to the next one."""
    mesh, axis = emitter.mesh, handover.axis
    first, last = (0, mesh.size(axis) - 1)[:: handover.way]
    region, here = Expr.var(mesh.outer), Expr.var(axis)
    to = [Expr.const(first) if name == axis else Expr.var(name) for name in mesh.plane]
    where = handover.leaves(mesh) & Cond.eq(here, last)
    route = AffineMap.of(mesh.names, [((region + 1, *to), where)])
    return emitter.channel(f"edge_{axis}" if handover.way > 0 else f"edge_back_{axis}", route)


def onward(emitter: Emitter, handover: Handover) -> Symbol:
    """From each core of a region to the next of the way of ``handover``."""
    mesh, axis, way = emitter.mesh, handover.axis, handover.way
    here = Expr.var(axis)
    where = Cond.le(here, mesh.size(axis) - 2) if way > 0 else Cond.ge(here, 1)
    route = AffineMap.of(mesh.plane, [(_at(mesh, axis, here + way), where)])
    return emitter.channel(f"{'onward' if way > 0 else 'chain'}_{axis}_1", route)


def _at(mesh: Mesh, axis: str, along: Expr) -> tuple[Expr, Expr]:
    row, column = map(Expr.var, mesh.plane)
    return (along, column) if axis == mesh.down else (row, along)


def _base(mesh: Mesh, axis: str) -> Expr:
    """First position of the segment, for an axis inside segments."""
    if axis == mesh.across or axis != mesh.inner or mesh.segments == 1:
        return Expr.const(0)
    column = Expr.var(mesh.across)
    return column - column % mesh.size(mesh.inner)
