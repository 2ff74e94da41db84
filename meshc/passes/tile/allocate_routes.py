"""allocate-routes: colors and queues for every channel, core by core."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from meshc.analysis.layout.coordinates import position
from meshc.analysis.layout.placement import (
    Coloring,
    chain_coloring,
    multicast_coloring,
    ring_coloring,
    spaced_coloring,
)
from meshc.analysis.traffic.channels import Line, line_of
from meshc.analysis.traffic.queues import assign_queues
from meshc.devices import Device
from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates
from meshc.verify.routed import check_crossing, check_line


@dataclass(frozen=True)
class AllocateRoutes(Pass):
    """Give each core the color on which it sends and receives on each channel, and queues.

    Two messages that touch a common router need different colors: a chain takes two by parity,
    the two-hop ring three (interval from ``p`` has color ``p mod 3``), a multicast one, and any
    other channel whose messages all go ``d`` cores the same way ``d + 1``. Channels with turns come
    first, since not every color of a device has a switch. Channels on which some core receives need
    different input queues; likewise output queues, where there are enough of them. Exceeding the
    device is an error that names R of PLMR; so are messages of one channel that cross in a way
    which none of these colorings keeps apart, and messages from region to region that are not those
    of neighbours on the device.

    Before::

        channel @chain_y_1 "{ [y, x] -> [y - 1, x] : y >= 1 }"

    After::

        channel @chain_y_1 ... {send_color = "0", recv_color = "0", queue = 0, output_queue = 0}
    """

    NAME: ClassVar[str] = "allocate-routes"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"channels_matched"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"routed"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"csl_queues", "csl_tasks", "csl_words"})

    def run(self, module: Module, report: Diagnostics) -> Module:
        mesh = module.the_mesh()
        next_color = 0
        for channel in sorted(module.channels, key=lambda c: not c.turns):
            coloring = color(channel, mesh)
            channel.send_color = _numbered(coloring.send, next_color)
            channel.recv_color = _numbered(coloring.recv, next_color)
            next_color += coloring.count
        lines = [line_of(c, mesh) for c in module.channels]
        for channel, line in zip(module.channels, lines, strict=True):
            check_line(mesh, channel, line)
            if line.axis not in mesh.plane:
                check_crossing(module, channel)
        inputs = assign_queues([line.receiving for line in lines])
        outputs = assign_queues([line.sending for line in lines])
        device = module.the_device()
        limits = {
            "colors": (next_color, device.free("colors")),
            "input queues": (max(inputs, default=-1) + 1, device.free("input_queues")),
        }
        check_limits(module, limits)
        for channel, queue, output in zip(module.channels, inputs, outputs, strict=True):
            channel.queue = device.first("input_queues") + queue
            channel.output_queue = _output(device, output)
        used = ", ".join(
            f"{n} {what}" + (f" of {m}" if m else "") for what, (n, m) in limits.items()
        )
        report.remark("routes", f"{len(module.channels)} channels take {used}")
        return module


def check_limits(module: Module, limits: dict[str, tuple[int, int | None]]) -> None:
    """Refuse a program that needs more routing resources than a core has."""
    for what, (needed, limit) in limits.items():
        if limit is not None and needed > limit:
            names = ", ".join(c.name for c in module.channels)
            fail(
                "too-many-routes",
                f"the program needs {needed} {what} on a core, which has {limit} free",
                notes=(f"channels: {names}", violates("R")),
                help="choose algorithms with fewer channels",
            )


def _output(device: Device, queue: int) -> int:
    """Output queues are shared in turn when a core has fewer than it has channels to send on."""
    limit = device.free("output_queues")
    return device.first("output_queues") + (queue if limit is None else queue % limit)


def color(channel: Channel, mesh: Mesh) -> Coloring:
    """Colors of one channel in terms of the mesh's axes.

    The name of a channel tells which of the known patterns it probably is; what counts is that its
    messages keep apart. Raises ``routes-cross`` for a channel of a user's own that has no pattern.
    """
    line = line_of(channel, mesh)
    if line.axis not in mesh.plane:
        passing = line.edge is not None and line.edge[1] & line.edge[2]
        found = chain_coloring(1) if passing else multicast_coloring()
        return _placed(found, Expr.var(line.axis))
    likely = _likely_coloring(channel, line, mesh)
    if channel.turns or keeps_apart(line, likely):
        return likely
    distances = {target - sender for sender, target in line.pairs}
    if len(distances) == 1 and not channel.multicast:
        (distance,) = distances
        spaced = _placed(spaced_coloring(distance), Expr.var(line.axis))
        if keeps_apart(line, spaced):
            return spaced
    return fail(
        "routes-cross",
        f"messages of @{channel.name} meet at routers of axis {line.axis}, and no coloring of its "
        "cores is known that keeps them apart",
        notes=(violates("R"),),
        help="let all messages of a channel go equally far in one direction, one to each core, or "
        "give each direction a channel of its own",
    )


def keeps_apart(line: Line, coloring: Coloring) -> bool:
    """Whether both ends of each message agree on its color and no router sees a color twice.

    The colors are functions of the line's axis.
    """
    longest = max((max(pair) for pair in line.pairs), default=0)
    places = {line.axis: np.arange(longest + 1)}
    sent, received = (
        np.broadcast_to(np.asarray(side.evaluate(places, default=-1)), longest + 1)
        for side in (coloring.send, coloring.recv)
    )
    if any(sent[source] != received[target] for source, target in line.pairs):
        return False
    spans = sorted((sent[source], low, high) for source, (low, high) in line.messages().items())
    return all(
        color != other or end < start for (color, _, end), (other, start, _) in pairwise(spans)
    )


def _placed(coloring: Coloring, place: Expr) -> Coloring:
    """The coloring of positions ``p``, for cores whose position is ``place``."""
    here = {"p": place}
    return Coloring(coloring.count, coloring.send.substitute(here), coloring.recv.substitute(here))


def _likely_coloring(channel: Channel, line: Line, mesh: Mesh) -> Coloring:
    """The coloring of the pattern that a channel's name tells, or that its geometry suggests."""
    if channel.multicast or len(line.pairs) <= 1:
        return multicast_coloring()
    kind, _, rest = channel.name.partition("_")
    if kind == "fold":
        return _from_middle(rest, line, mesh)
    axis, _, text = rest.partition("_")
    stride = text.partition("_")[0] or "1"
    if axis not in mesh.parts or mesh.whole(axis) not in mesh.plane or not stride.isdecimal():
        # A name of the user's own: neighbours, or else a ring.
        kind, axis, stride = "chain" if line.hops <= 1 else "ring", line.axis, "1"
    if kind in ("chain", "onward", "up"):
        found = chain_coloring(max(int(stride), 1))
    elif mesh.ring(axis) or mesh.size(axis) <= 2:
        found = ring_coloring(mesh.size(axis))
    else:
        found = natural_ring_coloring(mesh.size(axis))
    if kind == "back":  # the same intervals, travelled the other way
        found = Coloring(found.count, found.recv, found.send)
    return _placed(found, position(mesh, axis))


def _from_middle(rest: str, line: Line, mesh: Mesh) -> Coloring:
    """Messages to the middle of a line, by the parity of their places from there."""
    here, middle = Expr.var(line.axis), mesh.size(line.axis) // 2
    behind = Cond.ge(here, middle)
    stride = rest.rpartition("_")[2]
    found = chain_coloring(int(stride) if stride.isdecimal() and stride != "0" else 1)

    def folded(side: Piecewise) -> Piecewise:
        assert side.expr is not None
        before = side.expr.substitute({"p": (middle - 1) - here})
        return Piecewise.of([(behind, side.expr.substitute({"p": here - middle})),
                             (Cond.true(), before)])  # fmt: skip

    return Coloring(2, folded(found.send), folded(found.recv))


def natural_ring_coloring(size: int) -> Coloring:
    """A ring in natural order: neighbours by parity, and one long way back of its own color."""
    place = Expr.var("p")
    send = [(Cond.eq(place, 0), Expr.const(2)), (Cond.true(), place % 2)]
    recv = [(Cond.eq(place, size - 1), Expr.const(2)), (Cond.true(), (place + 1) % 2)]
    return Coloring(3, Piecewise.of(send), Piecewise.of(recv))


def _numbered(colors: Piecewise, first: int) -> str:
    """The function with colors counted from ``first``, as text."""
    return str(Piecewise.of([(cond, value + first) for cond, value in colors.pieces]))
