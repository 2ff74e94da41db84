"""Ends of channels in a program: who uses them, and on which colors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from meshc.ir.affine import Cond, Piecewise, parse_piecewise
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops.tile import channel_in, channel_out

Verb = Literal["send", "recv"]
End = tuple[str, Verb]
"""Name of a channel, and what a core does there."""

_ALWAYS = Cond.true()


def ends_of(module: Module) -> dict[End, Cond]:
    """Every end that a program uses, in the order of first use, and the guards of its uses."""
    found: dict[End, Cond] = {}
    for op, guard in guarded(module.program.body):
        named: tuple[tuple[Verb, str | None], ...] = (
            ("send", channel_out(op)),
            ("recv", channel_in(op)),
        )
        for verb, name in named:
            if name is not None:
                found[name, verb] = found.get((name, verb), Cond.false()) | guard
    return found


def used_colors(module: Module) -> set[int]:
    """The colors on which a program sends or receives somewhere, as far as channels have any."""
    found: set[int] = set()
    for name, verb in ends_of(module):
        channel = module.channel(name)
        text = channel.send_color if verb == "send" else channel.recv_color
        found |= colors_on(parse_piecewise(text), module.the_mesh()) if text else set()
    return found


def guarded(block: Block, outside: Cond = _ALWAYS) -> Iterator[tuple[Op, Cond]]:
    """Every op of ``block``, and the guards that it stands under, all of them together."""
    for op in block.ops:
        guard = outside if op.when is None else outside & op.when
        yield op, guard
        for region in op.regions:
            yield from guarded(region, guard)


def colors_on(colors: Piecewise, mesh: Mesh) -> set[int]:
    """The colors that a function of the position takes on a mesh."""
    row = np.arange(mesh.rows if mesh.down in colors.free_vars else 1)[:, None]
    column = np.arange(mesh.columns if mesh.across in colors.free_vars else 1)[None, :]
    place = dict.fromkeys(mesh.names, 0) | {mesh.down: row, mesh.across: column}
    return {int(c) for c in np.unique(colors.evaluate(place, default=0))}
