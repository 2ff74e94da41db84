"""How activations pass from region to region: over the edge that both have in common.

A value that all cores along the way have alike crosses once, from the last of them to the first of
the next region, where it is multicast. A value that is split along the way moves core by core, as
many steps as there are cores, so that no message is longer than a hop. Where any core reaches any
other at once, each core sends to its counterpart.
"""

from __future__ import annotations

from meshc.analysis.handovers import Handover, handovers
from meshc.ir.affine import Cond, Expr
from meshc.ir.types import Layout
from meshc.ir.views import Symbol, View
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place


def take_over(emitter: Emitter, place: Place, layout: Layout) -> None:
    """Receive at ``place`` what the region before had there; the first region has it already."""
    mesh = emitter.mesh
    if _reaches_all(emitter):
        later = Cond.ge(Expr.var(mesh.outer), 1)
        emitter.wait(emitter.recv(rings.next_region(emitter), emitter.view(place), when=later))
        return
    for handover in handovers(mesh):
        if _moves(emitter, handover, layout):
            _shift_in(emitter, handover, place)
        else:
            _cross_in(emitter, handover, emitter.view(place))


def hand_on(emitter: Emitter, place: Place, layout: Layout) -> None:
    """Send what is at ``place`` to the next region, if there is one."""
    mesh = emitter.mesh
    if _reaches_all(emitter):
        more = Cond.le(Expr.var(mesh.outer), mesh.regions - 2)
        emitter.send(rings.next_region(emitter), emitter.view(place), when=more)
        return
    for handover in handovers(mesh):
        if _moves(emitter, handover, layout):
            _shift_out(emitter, handover, place)
        else:
            last = Cond.eq(handover.place(mesh), mesh.size(handover.axis) - 1)
            edge = rings.edge(emitter, handover.axis)
            emitter.send(edge, emitter.view(place), when=handover.leaves(mesh) & last)


def _reaches_all(emitter: Emitter) -> bool:
    """Whether messages need no way past other cores."""
    device = emitter.source.device
    return device is not None and device.link.topology == "all_to_all"


def _moves(emitter: Emitter, handover: Handover, layout: Layout) -> bool:
    """Whether cores along the way have different parts."""
    mesh = emitter.mesh
    split = any(mesh.whole(s.axis) == handover.axis for s in layout.splits)
    return split and mesh.size(handover.axis) > 1


def _cross_in(emitter: Emitter, handover: Handover, view: View) -> None:
    """From the edge to the first core of the way, and from there to all along it."""
    mesh, arrives, at = emitter.mesh, handover.arrives(emitter.mesh), handover.place(emitter.mesh)
    first = arrives & Cond.eq(at, 0)
    emitter.wait(emitter.recv(rings.edge(emitter, handover.axis), view, when=first))
    if mesh.size(handover.axis) > 1:
        cast = rings.multicast(emitter, handover.axis, handover.way)
        sent = emitter.send(cast, view, when=first)
        emitter.wait(sent, emitter.recv(cast, view, when=arrives & Cond.ge(at, 1)))


def _shift_in(emitter: Emitter, handover: Handover, place: Place) -> None:
    """The part for the last core comes first and moves on: after step t the first t + 1 cores have
    something."""
    mesh, arrives, at = emitter.mesh, handover.arrives(emitter.mesh), handover.place(emitter.mesh)
    edge, onward = rings.edge(emitter, handover.axis), _onward(emitter, handover)
    arrived = emitter.place_like(place, "arrived", View(place.buffer).buffer_type.dtype)
    with emitter.loop("step", mesh.size(handover.axis)) as step:
        passed = emitter.send(onward, emitter.view(place), when=arrives & Cond.lt(at, step))
        came = emitter.recv(edge, emitter.view(arrived), when=arrives & Cond.eq(at, 0))
        moved = Cond.ge(at, 1) & Cond.le(at, step)
        got = emitter.recv(onward, emitter.view(arrived), when=arrives & moved)
        emitter.wait(passed, came, got)
        here = arrives & Cond.le(at, step)
        emitter.compute_where(here, "copy", emitter.view(place), emitter.view(arrived))


def _shift_out(emitter: Emitter, handover: Handover, place: Place) -> None:
    """All parts move on at once; in each step one leaves, and one core less has something."""
    mesh, leaves, at = emitter.mesh, handover.leaves(emitter.mesh), handover.place(emitter.mesh)
    edge, onward = rings.edge(emitter, handover.axis), _onward(emitter, handover)
    last = mesh.size(handover.axis) - 1
    dtype = View(place.buffer).buffer_type.dtype
    leaving, behind = (emitter.place_like(place, n, dtype) for n in ("leaving", "behind"))
    emitter.compute_where(leaves, "copy", emitter.view(leaving), emitter.view(place))
    with emitter.loop("step", last + 1) as step:
        left = emitter.send(edge, emitter.view(leaving), when=leaves & Cond.eq(at, last))
        inside = Cond.ge(at, step) & Cond.le(at, last - 1)
        passed = emitter.send(onward, emitter.view(leaving), when=leaves & inside)
        follows = leaves & Cond.gt(at, step)
        got = emitter.recv(onward, emitter.view(behind), when=follows)
        emitter.wait(left, passed, got)
        emitter.compute_where(follows, "copy", emitter.view(leaving), emitter.view(behind))


def _onward(emitter: Emitter, handover: Handover) -> Symbol:
    """The channel from each core to the next of the way."""
    return rings.onward(emitter, handover.axis, handover.way)
