"""How activations pass from region to region: over the edge that both have in common.

A value that all cores along the way have alike crosses once, from the last of them to the first of
the next region, and is spread from there. Single rows that are split along the way are first turned
to the other axis of the plane, by a masked copy and a sum, and turned back behind the edge: both
take channels that the reductions of a layer have anyway. Many rows move core by core, as many steps
as there are cores. So no message is longer than a hop. Where any core reaches any other at once,
each core sends to its counterpart.
"""

from __future__ import annotations

from functools import cached_property

from meshc.analysis.layout.tiling import ceil_div
from meshc.analysis.traffic.handovers import Handover, handovers
from meshc.ir.affine import Cond, Expr
from meshc.ir.ops import mesh as ops
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand import collectives, rings
from meshc.passes.tile.expand.emitter import Place
from meshc.passes.tile.expand.pointwise import Pointwise


class Handing(Pointwise):
    """Sends and receives the values that a loop over layers carries, at the ends of a region."""

    def take_over(self, place: Place, kind: TensorType) -> None:
        """Receive at ``place`` what the region before had there; the first region has it already.
        ``kind`` is the type of the value."""
        emitter = self.emitter
        if self.reaches_all:
            later = Cond.ge(Expr.var(emitter.mesh.outer), 1)
            way = rings.next_region(emitter)
            emitter.wait(emitter.recv(way, self.view(place), when=later))
            return
        for handover in handovers(emitter.mesh):
            arrives = handover.arrives(emitter.mesh)
            turned = self.turned(kind, handover.axis)
            if turned is not None:
                crossing = emitter.new_place("crossing", turned)
                self.cross_in(handover, crossing)
                self.turn(crossing, turned, place, kind, arrives)
            elif self.moves(kind, handover.axis):
                self.shift_in(handover, place)
            else:
                self.cross_in(handover, place)

    def hand_on(self, place: Place, kind: TensorType) -> None:
        """Send what is at ``place``, a value of type ``kind``, to the next region, if there is
        one."""
        emitter = self.emitter
        if self.reaches_all:
            more = Cond.le(Expr.var(emitter.mesh.outer), emitter.mesh.regions - 2)
            emitter.send(rings.next_region(emitter), self.view(place), when=more)
            return
        for handover in handovers(emitter.mesh):
            leaves = handover.leaves(emitter.mesh)
            turned = self.turned(kind, handover.axis)
            if turned is not None:
                crossing = emitter.new_place("crossing", turned)
                self.turn(place, kind, crossing, turned, leaves)
                self.cross_out(handover, crossing)
            elif self.moves(kind, handover.axis):
                self.shift_out(handover, place)
            else:
                self.cross_out(handover, place)

    # --- what to do

    @cached_property
    def reaches_all(self) -> bool:
        """Whether messages need no way past other cores."""
        return self.module.reaches_all(self.module.axes.outer)

    @cached_property
    def sums(self) -> dict[str, ops.AllReduce]:
        """A sum over each axis over which something is summed anyway."""
        made = (op for op in self.module.walk() if isinstance(op, ops.AllReduce))
        return {op.axis: op for op in made if op.reduce == "sum"}

    def moves(self, kind: TensorType, axis: str) -> bool:
        """Whether cores along ``axis`` have different parts."""
        mesh = self.emitter.mesh
        splits = (kind.layout or Layout()).splits
        return mesh.size(axis) > 1 and any(mesh.whole(split.axis) == axis for split in splits)

    def turned(self, kind: TensorType, axis: str) -> TensorType | None:
        """The type of a value that is split over ``axis`` alone, split over the other axis of the
        plane instead; None where it cannot be turned or need not be."""
        mesh, splits = self.emitter.mesh, (kind.layout or Layout()).splits
        other = mesh.other(axis)
        if (
            self.emitter.many_rows
            or not self.moves(kind, axis)
            or [s.axis for s in splits] != [axis]
        ):
            return None
        if any(mesh.size(a) > 1 and a not in self.sums for a in mesh.plane):
            return None
        block = ceil_div(self.module.dims[splits[0].dim], mesh.size(other))
        return kind.with_layout(Layout((Split(splits[0].dim, other, block),)))

    # --- how

    def turn(
        self, source: Place, old: TensorType, target: Place, new: TensorType, where: Cond
    ) -> None:
        """Bring a value of type ``old`` to type ``new``, split over the other axis: the cores where
        both meet have the lanes, and a sum over the axis that it leaves gives them to all."""
        before, after = Value("turned", old), Value("turned", new)
        self.settle(before, source)
        self.settle(after, target)
        (left,) = (old.layout or Layout()).splits
        with self.emitter.under(where):
            move = ops.Relayout([before])
            move.results = [after]
            self.relayout(move)
            self.complete(left.axis, target)

    def complete(self, axis: str, place: Place) -> None:
        """Sum what cores of ``axis`` have at ``place``."""
        if self.emitter.mesh.size(axis) > 1:
            view = self.view(place)
            collectives.all_reduce(self.emitter, self.sums[axis], view, place.width, place.rows)

    def cross_out(self, handover: Handover, place: Place) -> None:
        """From the last core of the way over the edge."""
        emitter, mesh = self.emitter, self.emitter.mesh
        last = Cond.eq(handover.place(mesh), mesh.size(handover.axis) - 1)
        over = rings.edge(emitter, handover)
        emitter.send(over, self.view(place), when=handover.leaves(mesh) & last)

    def cross_in(self, handover: Handover, place: Place) -> None:
        """From the edge to the first core of the way, and from there to all along it: by a
        multicast, or by a sum where there is only one that begins at the other end."""
        emitter, mesh = self.emitter, self.emitter.mesh
        arrives, at, view = handover.arrives(mesh), handover.place(mesh), self.view(place)
        first = arrives & Cond.eq(at, 0)
        emitter.wait(emitter.recv(rings.edge(emitter, handover), view, when=first))
        if mesh.size(handover.axis) == 1:
            return
        if handover.way < 0 and handover.axis in self.sums:
            with emitter.under(arrives & Cond.ge(at, 1)):
                emitter.compute("fill", view, value=0.0)
            with emitter.under(arrives):
                self.complete(handover.axis, place)
            return
        cast = rings.multicast(emitter, handover.axis, handover.way)
        sent = emitter.send(cast, view, when=first)
        emitter.wait(sent, emitter.recv(cast, view, when=arrives & Cond.ge(at, 1)))

    def shift_in(self, handover: Handover, place: Place) -> None:
        """The part for the last core comes first and moves on: after step t the first t + 1 cores
        have something."""
        emitter, mesh = self.emitter, self.emitter.mesh
        arrives, at, view = handover.arrives(mesh), handover.place(mesh), self.view(place)
        over, onward = rings.edge(emitter, handover), rings.onward(emitter, handover)
        arrived = self.view(self.like(place, "arrived"))
        with emitter.loop("step", mesh.size(handover.axis)) as step:
            passed = emitter.send(onward, view, when=arrives & Cond.lt(at, step))
            came = emitter.recv(over, arrived, when=arrives & Cond.eq(at, 0))
            moved = Cond.ge(at, 1) & Cond.le(at, step)
            got = emitter.recv(onward, arrived, when=arrives & moved)
            emitter.wait(passed, came, got)
            emitter.compute_where(arrives & Cond.le(at, step), "copy", view, arrived)

    def shift_out(self, handover: Handover, place: Place) -> None:
        """All parts move on at once; in each step one leaves, and one core less has something."""
        emitter, mesh = self.emitter, self.emitter.mesh
        leaves, at = handover.leaves(mesh), handover.place(mesh)
        over, onward = rings.edge(emitter, handover), rings.onward(emitter, handover)
        last = mesh.size(handover.axis) - 1
        leaving, behind = (self.view(self.like(place, n)) for n in ("leaving", "behind"))
        emitter.compute_where(leaves, "copy", leaving, self.view(place))
        with emitter.loop("step", last + 1) as step:
            left = emitter.send(over, leaving, when=leaves & Cond.eq(at, last))
            inside = Cond.ge(at, step) & Cond.le(at, last - 1)
            passed = emitter.send(onward, leaving, when=leaves & inside)
            follows = leaves & Cond.gt(at, step)
            got = emitter.recv(onward, behind, when=follows)
            emitter.wait(left, passed, got)
            emitter.compute_where(follows, "copy", leaving, behind)

    def like(self, place: Place, name: str) -> Place:
        """A buffer for what is at ``place``."""
        return self.emitter.place_like(place, name, View(place.buffer).buffer_type.dtype)
