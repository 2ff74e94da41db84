"""Routes of channels over the cores of a line, and the colors that routers know for them.

All lines of an axis look alike, so that one stands for all: what is said of a core is said of its
class, those with the same position on that axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshc.analysis.traffic.channels import Line, line_of
from meshc.analysis.traffic.roles import BOTH, NOTHING, PASSES, RECEIVES, SENDS, roles
from meshc.ir.affine import parse_piecewise
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops.tile import channel_in, channel_out
from meshc.ir.printer import op_lines


def routes(module: Module) -> dict[str, Any]:
    """The channels of a tile-level ``module``, and by axis of the plane what each color is used for
    at each position."""
    mesh = module.the_mesh()
    used: dict[str, list[int]] = {channel.name: [] for channel in module.channels}
    for line, op in op_lines(module):
        for name in dict.fromkeys(filter(None, (channel_in(op), channel_out(op)))):
            used[name].append(line)
    lines = {channel.name: line_of(channel, mesh) for channel in module.channels}
    return {
        "channels": [_channel(c, lines[c.name], mesh, used[c.name]) for c in module.channels],
        "colors": {axis: _colors(module, lines, mesh, axis) for axis in mesh.plane},
    }


def _channel(channel: Channel, line: Line, mesh: Mesh, used: Sequence[int]) -> dict[str, Any]:
    size = mesh.size(line.axis)
    return {
        "name": channel.name,
        "route": str(channel.route),
        "axis": line.axis,
        "edge": line.edge[0] if line.edge else "",
        "hops": line.hops,
        "multicast": channel.multicast,
        "turns": channel.turns,
        "send_color": channel.send_color,
        "recv_color": channel.recv_color,
        "queue": channel.queue,
        "output_queue": channel.output_queue,
        "roles": roles(line, size),
        "colors": _along(channel.send_color, mesh, line.axis),
        "pairs": [list(pair) for pair in line.pairs],
        "used": list(used),
    }


def _along(color: str, mesh: Mesh, axis: str) -> list[int]:
    """The color of each position of ``axis``, in the first core of all others; -1 for none."""
    if not color:
        return []
    places = {name: np.zeros(1, np.int64) for name in mesh.names}
    places[axis] = np.arange(mesh.size(axis))
    found = parse_piecewise(color).evaluate(places, default=-1)
    return [int(c) for c in np.broadcast_to(np.asarray(found), places[axis].shape)]


def _colors(module: Module, lines: dict[str, Line], mesh: Mesh, axis: str) -> list[dict[str, Any]]:
    """For each color on ``axis``: its number, the channels that have it, and what routers do with
    it, a letter for each position."""
    found: dict[int, tuple[dict[str, None], list[str]]] = {}
    for channel in module.channels:
        line = lines[channel.name]
        if line.axis != axis:
            continue
        colors = _along(channel.send_color, mesh, axis)
        heard: dict[int, list[int]] = {}
        for sender, receiver in line.pairs:
            heard.setdefault(sender, []).append(receiver)
        for sender, (low, high) in line.messages().items():
            if not colors or colors[sender] < 0:
                continue
            names, does = found.setdefault(colors[sender], ({}, [NOTHING] * mesh.size(axis)))
            names[channel.name] = None
            does[low : high + 1] = [PASSES if r == NOTHING else r for r in does[low : high + 1]]
            does[sender] = BOTH if does[sender] in (RECEIVES, BOTH) else SENDS
            for receiver in heard[sender]:
                does[receiver] = BOTH if does[receiver] in (SENDS, BOTH) else RECEIVES
    return [
        {"color": color, "channels": [*names], "roles": "".join(does)}
        for color, (names, does) in sorted(found.items())
    ]
