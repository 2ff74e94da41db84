"""Channels by geometry: rings of ranks, chains, multicasts, the way from region to region."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.layout.coordinates import position
from meshc.analysis.layout.placement import ring_step
from meshc.analysis.layout.tiling import ceil_div
from meshc.analysis.traffic.handovers import Handover
from meshc.analysis.traffic.tracks import Track, chain_track, phases, tree_size
from meshc.analysis.traffic.turns import turn_route
from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.ir.mesh import Mesh, fold_name
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


@dataclass(frozen=True)
class TreeLine:
    """The cores of a tree over ``axis``: each one's ``place`` counts from where sums go, the first
    core or, where trees are ``folded``, the middle of the line. ``size`` are the cores of a tree;
    of a folded one the other half of the axis has as many, which it ``crosses`` to."""

    mesh: Mesh
    axis: str
    place: Expr
    size: int
    folded: bool

    @property
    def crosses(self) -> bool:
        """Whether the sums of two trees meet at the middle."""
        return self.size < self.mesh.size(self.axis)

    @property
    def root(self) -> Cond:
        """Who has the sum in the end, before it is sent to all."""
        line = self.mesh.whole(self.axis)
        if self.crosses:
            return Cond.eq(Expr.var(line), self.mesh.size(line) // 2)
        return Cond.eq(self.place, 0)

    @property
    def others(self) -> Cond:
        """All but the root."""
        return ~self.root if self.crosses else Cond.ge(self.place, 1)

    @property
    def before(self) -> Cond:
        """Who has the sum of the first half of a line, which ``crosses`` to the other."""
        line = self.mesh.whole(self.axis)
        return Cond.eq(Expr.var(line), self.mesh.size(line) // 2 - 1)

    def member(self, stride: int, group: int) -> Expr:
        """Place of a core in its group of a phase; place 0 is the group's root."""
        place = self.place // stride
        return place if stride * group >= self.size else place % group

    def sides(self, where: Cond, away: int) -> list[tuple[Expr, Cond]]:
        """Positions ``away`` places further from where sums go, of the cores ``where`` says in
        terms of ``fold``, for the map of a channel."""
        line = self.mesh.whole(self.axis)
        here, name = Expr.var(line), fold_name(line)
        if not self.folded:
            return [(here + away, where)]
        middle = self.mesh.size(line) // 2
        behind = where.substitute({name: here - middle}) & Cond.ge(here, middle)
        before = where.substitute({name: (middle - 1) - here}) & Cond.le(here, middle - 1)
        return [(here + away, behind), (here - away, before)]


def line(mesh: Mesh, axis: str, folded: bool) -> TreeLine:
    """The cores of a tree over ``axis``."""
    size, place = tree_size(mesh, axis, folded), position(mesh, axis)
    if folded:
        whole = mesh.whole(axis)
        place = Expr.var(fold_name(whole))
        place = place if size * 2 == mesh.size(whole) else place % size
    return TreeLine(mesh, axis, place, size, folded)


def chain(emitter: Emitter, along: TreeLine, stride: int, group: int) -> Symbol:
    """From each member of a group to the member before it, ``stride`` places away.

    Reductions whose groups differ share one channel, which goes from every multiple of the stride
    to the one before: who sends on it is for each of them to say.
    """
    mesh, folded = emitter.mesh, along.folded
    track = chain_track(mesh, along.axis, stride, folded)
    wanted = _groups_on(emitter.source).get(track, set()) | {(along.axis, group)}
    senders = {_members(line(mesh, axis, folded), of, stride) for axis, of in wanted}
    where, name = _members(along, group, stride), along.axis
    if len(senders) > 1:
        place, name = line(mesh, track.axis, folded).place, track.axis
        where = Cond.eq(place % stride, 0) & Cond.ge(place, stride)
    pieces = [(_at(mesh, along.axis, to), cond) for to, cond in along.sides(where, -stride)]
    kind = "fold" if folded else "chain"
    return emitter.channel(f"{kind}_{name}_{stride}", AffineMap.of(mesh.plane, pieces))


def _groups_on(module: Module) -> dict[Track, set[tuple[str, int]]]:
    """Axes and groups of the reductions that share each chain."""
    mesh, found = module.the_mesh(), dict[Track, set[tuple[str, int]]]()
    for op in module.walk():
        if isinstance(op, (mesh_ops.AllReduce, mesh_ops.Reduce)):
            for stride, group in phases(op.groups):
                track = chain_track(mesh, op.axis, stride, op.folded)
                found.setdefault(track, set()).add((op.axis, group))
    return found


def _members(along: TreeLine, group: int, stride: int) -> Cond:
    """Where a core has a member of its group before it."""
    return Cond.eq(along.place % stride, 0) & Cond.ge(along.member(stride, group), 1)


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


def chain_ends(along: TreeLine, stride: int, group: int) -> ChainEnds:
    """Who begins, passes on and ends the chains of :func:`chain`. The last group of a phase may
    be shorter than the others, or a single core, which takes no part."""
    here, place = along.place, along.member(stride, group)
    places = ceil_div(along.size, stride)
    length = min(group, places)
    last, root = Cond.eq(place, length - 1), Cond.eq(place, 0)
    between = Cond.eq(place, 1) if length == 3 else Cond.between(1, place, length - 1)
    sends, receives = Cond.ge(place, 1), Cond.le(place, length - 2)
    if places % length:
        end = Cond.ge(here, along.size - stride)
        last, between = last | (end & sends), between & ~end
        root = root if places % length > 1 else root & ~end
        receives &= ~end
    return ChainEnds(Cond.eq(here % stride, 0), last, between, root, sends, receives)


def cross(emitter: Emitter, axis: str) -> Symbol:
    """From the core before the middle of ``axis`` to the one behind it."""
    mesh, along = emitter.mesh, line(emitter.mesh, axis, True)
    to = _at(mesh, axis, Expr.var(mesh.whole(axis)) + 1)
    return emitter.channel(f"cross_{axis}", AffineMap.of(mesh.plane, [(to, along.before)]))


def outwards(emitter: Emitter, axis: str, step: int = 1) -> Symbol:
    """From the core behind the middle of a line, or from that of each segment which is nearest to
    the middle, to all others of it; with a ``step`` to those whose places from there are multiples
    of it."""
    mesh = emitter.mesh
    along = line(mesh, axis, True)
    whole = mesh.whole(axis)
    here, far, size = Expr.var(whole), Expr.var(f"_{whole}"), along.size
    behind, before = (side for _, side in along.sides(Cond.eq(along.place, 0), 0))
    if along.crosses:
        behind, before = along.root, along.root
    reach = size if along.crosses else size - 1
    behind &= Cond.between(here + 1, far, here + size)
    before &= Cond.between(here - reach, far, here)
    name = f"out_{axis}"
    if step > 1:
        middle, name = mesh.size(whole) // 2, f"{name}_{step}"
        behind &= Cond.eq((far - middle) % step, 0)
        before &= Cond.eq(((middle - 1) - far) % step, 0)
    pieces = [(_at(mesh, axis, far), side) for side in (behind, before)]
    return emitter.channel(name, AffineMap.of(mesh.plane, pieces), multicast=True)


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
