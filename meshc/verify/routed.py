"""routed: colors and queues within the device, no two messages share a color at a router."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.traffic.channels import Line, crossed_axis, crossings, line_of, shares_core
from meshc.analysis.traffic.handovers import origins_of
from meshc.ir.affine import Expr, IntArray, Piecewise, parse_piecewise
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates
from meshc.verify.walk import point_text


def check(module: Module) -> None:
    """Walk the messages of each channel on one line of the mesh, pass-through cores included."""
    mesh = module.the_mesh()
    lines = [line_of(c, mesh) for c in module.channels]
    values = coordinate_values(mesh)
    used: set[int] = set()
    for channel, line in zip(module.channels, lines, strict=True):
        check_line(mesh, channel, line)
        if line.axis not in mesh.plane:
            check_crossing(module, channel)
        sent = _colors(mesh, values, channel.send_color, line)
        received = _colors(mesh, values, channel.recv_color, line)
        mine = {sent[s] for s in line.senders}
        if mine & used:
            fail("routes-clash", f"@{channel.name} uses a color of another channel")
        used |= mine
        _check_ends(channel, line, sent, received)
        _check_routers(mesh, channel, line, sent)
    _check_queues(module, lines)
    limit = module.the_device().free("colors")
    if limit is not None and len(used) > limit:
        fail("too-many-routes", f"{len(used)} colors are used, {limit} are free")


def check_line(mesh: Mesh, channel: Channel, line: Line) -> None:
    """All lines of the axis look alike, so that walking one of them is enough. Raises
    ``routes-clash`` for a route or colors that depend on the line."""
    named = set[str]()
    for text in (channel.send_color, channel.recv_color):
        named |= parse_piecewise(text).free_vars
    if len(channel.route.inputs) == 2:
        for piece in channel.route.pieces:
            named |= {n for n in piece.domain.free_vars if not n.startswith("_")}
    along = mesh.coordinates_of(line.axis) if line.axis in mesh.plane else {line.axis}
    strange = sorted(named - along)
    if strange:
        fail(
            "routes-clash",
            f"@{channel.name} runs along {line.axis}, but its route or colors depend on "
            f"'{strange[0]}'",
            notes=(violates("R"),),
        )


def _colors(mesh: Mesh, values: dict[str, Piecewise], text: str, line: Line) -> list[int]:
    """The color at each position of the line, for all positions at once."""
    function = parse_piecewise(text)
    places = np.arange(mesh.size(line.axis))
    along = mesh.plane if line.axis in mesh.plane else (line.axis,)
    core = {name: places if name in along else places * 0 for name in mesh.names}
    env = {name: values[name].evaluate(core) for name in function.free_vars}
    found: IntArray = np.broadcast_to(np.asarray(function.evaluate(env)), places.shape)
    return [int(color) for color in found]


def _check_ends(channel: Channel, line: Line, sent: list[int], received: list[int]) -> None:
    for sender, receiver in line.pairs:
        if sent[sender] != received[receiver]:
            fail(
                "routes-clash",
                f"@{channel.name}: {line.axis}={sender} sends on color {sent[sender]} but "
                f"{line.axis}={receiver} listens on {received[receiver]}",
            )


def check_crossing(module: Module, channel: Channel) -> None:
    """Messages from region to region go to a neighbour on the device, so that they pass no other
    core: all regions and all cores of a line across the edge are looked at. Where any core reaches
    any other at once there is nothing to pass."""
    if module.reaches_all(module.axes.outer):
        return
    mesh, axis = module.the_mesh(), crossed_axis(channel, module.the_mesh())
    for piece in channel.route.pieces:
        others = [name for name in mesh.plane if name != axis]
        straight = all(piece.outputs[mesh.names.index(n)] == Expr.var(n) for n in others)
        if not straight or piece.domain.free_vars & {*others}:
            fail(
                "routes-clash",
                f"@{channel.name} leads from region to region other than straight over an edge",
            )
    origins = np.array([(row, column) for column, row in origins_of(mesh)])
    sources, targets = crossings(channel, mesh)
    for region in targets[(targets[:, 0] < 0) | (targets[:, 0] >= mesh.regions), 0][:1]:
        fail(
            "routes-clash",
            f"@{channel.name} leads to {mesh.outer}={region}, and the mesh has {mesh.regions} "
            f"region{'s' * (mesh.regions > 1)}",
        )
    here, there = (origins[ends[:, 0]] + ends[:, 1:] for ends in (sources, targets))
    hops = np.abs(here - there).sum(axis=1)
    for far in np.flatnonzero(hops != 1)[:1]:
        fail(
            "routes-clash",
            f"@{channel.name}: a message from {point_text(mesh, _point(mesh, sources[far]))} to "
            f"{point_text(mesh, _point(mesh, targets[far]))} takes {hops[far]} hops on the device, "
            "past cores that use their links themselves",
            help="let it move from core to core",
        )


def _point(mesh: Mesh, place: IntArray) -> dict[str, int]:
    return dict(zip(mesh.names, place.tolist(), strict=True))


def _check_routers(mesh: Mesh, channel: Channel, line: Line, sent: list[int]) -> None:
    """No router sees two messages of one color; regions pass activations one after the other, and
    messages of turns pass one after the other too."""
    if line.axis not in mesh.plane or channel.turns:
        return
    spans = sorted((sent[s], low, high, s) for s, (low, high) in line.messages().items())
    for (color, _, end, other), (next_color, start, _, sender) in pairwise(spans):
        if color == next_color and start <= end:
            fail(
                "routes-clash",
                f"@{channel.name}: messages from {line.axis}={other} and {sender} share color "
                f"{color} at the router of {line.axis}={start}",
            )


def _check_queues(module: Module, lines: list[Line]) -> None:
    for index, channel in enumerate(module.channels):
        for other in range(index):
            rival = module.channels[other]
            meet = shares_core(lines[index].receiving, lines[other].receiving)
            if meet and channel.queue is not None and channel.queue == rival.queue:
                fail(
                    "routes-clash",
                    f"@{channel.name} and @{rival.name} share input queue {channel.queue}",
                )
    device = module.the_device()
    limit = device.free("input_queues")
    if limit is None:
        return
    first = device.first("input_queues")
    over = [c for c in module.channels if (c.queue or 0) - first >= limit]
    if over:
        fail("too-many-routes", f"@{over[0].name} has no input queue left on some core")
