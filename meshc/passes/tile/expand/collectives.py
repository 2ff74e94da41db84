"""all_reduce as K-tree (WaferLLM section 6.2; one group is the pipeline) or as a ring.

A folded tree goes from both ends of a line to its middle: of the two cores there one hands the sum
of its half to the other, which sends that of all back both ways. One that is segmented sends it to
the first core of each segment, from where it goes to all others of it.

Sums and maxima flow through the cores of a chain, which only add to what passes. Softmaxes that are
merged do not: a core needs the maximum of what arrives before it can scale the rest.
"""

from __future__ import annotations

from meshc.analysis.layout.tiling import ceil_div
from meshc.analysis.traffic.tracks import phases
from meshc.ir.affine import Cond, Expr
from meshc.ir.ops import mesh
from meshc.ir.types import BufferType
from meshc.ir.views import View
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, point, window
from meshc.passes.tile.expand.moves import COMBINE


def all_reduce(emitter: Emitter, op: mesh.AllReduce, view: View, lanes: int, rows: bool) -> None:
    """Combine ``view`` in place over ``op.axis``; ``lanes`` is its width per row of tokens, if it
    has ``rows``."""
    if op.algo == "ring":
        _ring(emitter, op, view, lanes, emitter.rows if rows else Expr.const(1))
    else:
        _tree(emitter, op, view)


def _tree(emitter: Emitter, op: mesh.AllReduce, view: View) -> None:
    """Groups of each phase reduce along a chain to their first member; then a multicast."""
    reduce(emitter, op, view)
    line = rings.line(emitter.mesh, op.axis, op.folded)
    if line.crosses:
        cross = rings.cross(emitter, op.axis)
        sent = emitter.send(cross, view, when=line.before)
        emitter.wait(sent, emitter.recv(cross, view, when=line.root, combine=COMBINE[op.reduce]))
    _back(emitter, op, view)


def _back(emitter: Emitter, op: mesh.AllReduce, view: View) -> None:
    """What the root of the tree of ``op`` has, on all cores."""
    inner = emitter.mesh.inner
    if op.algo == "segmented":
        step = emitter.mesh.size(inner)
        line = rings.line(emitter.mesh, op.axis, True)
        cast = rings.outwards(emitter, op.axis, step)
        sent = emitter.send(cast, view, when=line.root)
        heard = Cond.eq(line.place % step, 0) & line.others
        emitter.wait(sent, emitter.recv(cast, view, when=heard))
    broadcast(emitter, inner if op.algo == "segmented" else op.axis, view, op.folded)


def reduce(emitter: Emitter, op: mesh.AllReduce | mesh.Reduce, view: View) -> None:
    """The sum in ``view`` of the first core of the axis; other cores' views are spent."""
    for stride, group in phases(op.groups):
        _phase(emitter, op, view, stride, group)


def broadcast(emitter: Emitter, axis: str, view: View, folded: bool = False) -> None:
    """What the first core of ``axis``, or that behind its middle, has, on all of them."""
    line = rings.line(emitter.mesh, axis, folded)
    cast = rings.outwards(emitter, axis) if folded else rings.multicast(emitter, axis)
    sent = emitter.send(cast, view, when=line.root)
    got = emitter.recv(cast, view, when=line.others)
    emitter.wait(sent, got)


def _phase(
    emitter: Emitter, op: mesh.AllReduce | mesh.Reduce, view: View, stride: int, group: int
) -> None:
    """One chain per group: its last member sends, those between pass on, its root receives.

    What the members hold is dead afterwards, so a relay's view need not have the sum.
    """
    line = rings.line(emitter.mesh, op.axis, op.folded)
    ends = rings.chain_ends(line, stride, group)
    channel = rings.chain(emitter, line, stride, group)
    combine = COMBINE[op.reduce]
    if min(group, ceil_div(line.size, stride)) == 2:
        with emitter.under(ends.members):
            sent = emitter.send(channel, view, when=ends.last)
            got = emitter.recv(channel, view, when=ends.root, combine=combine)
        emitter.wait(sent, got)
        return
    rank = (group - 1) - line.member(stride, group)
    with emitter.sweep(rank, group, ends.members):
        emitter.send(channel, view, when=ends.last)
        emitter.relay(channel, view, combine, when=ends.between)
        emitter.recv(channel, view, when=ends.root, combine=combine)


def merge(emitter: Emitter, op: mesh.AllReduce, view: View, arrived: View, count: int) -> None:
    """Merge the ``count`` softmaxes in ``view`` over ``op.axis``, in place and by the same trees as
    sums; those of another core come to ``arrived``."""
    stride = 1
    for group in op.groups:
        if group > 1:
            _merging_phase(emitter, op, (view, arrived), count, stride, group)
        stride *= group
    line = rings.line(emitter.mesh, op.axis, op.folded)
    if line.crosses:
        cross = rings.cross(emitter, op.axis)
        sent = emitter.send(cross, view, when=line.before)
        emitter.wait(sent, emitter.recv(cross, arrived, when=line.root))
        with emitter.under(line.root):
            emitter.compute("merge_softmax", view, arrived, count=count)
    _back(emitter, op, view)


def _merging_phase(
    emitter: Emitter,
    op: mesh.AllReduce,
    views: tuple[View, View],
    count: int,
    stride: int,
    group: int,
) -> None:
    """One chain per group: all but its last member receive and merge, all but its root send on."""
    view, arrived = views
    line = rings.line(emitter.mesh, op.axis, op.folded)
    ends = rings.chain_ends(line, stride, group)
    channel = rings.chain(emitter, line, stride, group)
    if min(group, ceil_div(line.size, stride)) == 2:
        with emitter.under(ends.members):
            sent = emitter.send(channel, view, when=ends.sends)
            got = emitter.recv(channel, arrived, when=ends.receives)
        emitter.wait(sent, got)
        with emitter.under(ends.members & ends.receives):
            emitter.compute("merge_softmax", view, arrived, count=count)
        return
    rank = (group - 1) - line.member(stride, group)
    with emitter.sweep(rank, group, ends.members):
        emitter.wait(emitter.recv(channel, arrived, when=ends.receives))
        with emitter.under(ends.receives):
            emitter.compute("merge_softmax", view, arrived, count=count)
        emitter.send(channel, view, when=ends.sends)


def _ring(emitter: Emitter, op: mesh.AllReduce, view: View, lanes: int, rows: Expr) -> None:
    """Reduce-scatter then all-gather over equal parts of the lanes."""
    size = emitter.mesh.size(op.axis)
    part = ceil_div(lanes, size)
    kind = view.buffer.type
    assert isinstance(kind, BufferType)
    capacity = emitter.row_room
    parts = emitter.buffer("ring_parts", (capacity, size * part), kind.dtype)
    slots = emitter.buffer("ring_slots", (size, capacity, part), kind.dtype)
    flat = View(view.buffer, view.indices, (rows, Expr.const(lanes)), ())
    emitter.compute("fill", View(parts, (window(0, rows),)), value=0.0)
    emitter.compute("copy", View(parts, (window(0, rows), window(0, lanes))), flat)
    with emitter.loop("p", size) as p:
        emitter.compute("copy", _slot(slots, p, rows), _lanes_of(emitter, parts, p, part, rows))
    channel = rings.ring(emitter, op.axis)
    rank = emitter.index_of(op.axis)
    with emitter.loop("t", size - 1) as t:
        sent = emitter.send(channel, _slot(slots, (rank + t) % size, rows))
        into = _slot(slots, (rank + t + 1) % size, rows)
        emitter.wait(sent, emitter.recv(channel, into, combine=COMBINE[op.reduce]))
    with emitter.loop("t", size - 1) as t:
        sent = emitter.send(channel, _slot(slots, (rank + t + (size - 1)) % size, rows))
        into = _slot(slots, (rank + t) % size, rows)
        emitter.wait(sent, emitter.recv(channel, into))
    with emitter.loop("p", size) as p:
        emitter.compute("copy", _lanes_of(emitter, parts, p, part, rows), _slot(slots, p, rows))
    emitter.compute("copy", flat, View(parts, (window(0, rows), window(0, lanes))))


def _slot(slots: object, at: Expr, rows: Expr) -> View:
    return View(slots, (point(at), window(0, rows)))  # type: ignore[arg-type]


def _lanes_of(emitter: Emitter, parts: object, at: Expr, part: int, rows: Expr) -> View:
    return View(parts, (window(0, rows), window(at * part, part)))  # type: ignore[arg-type]
