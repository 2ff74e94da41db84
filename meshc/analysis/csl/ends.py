"""Ends of channels in a program: who uses them, and on which colors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np

from meshc.ir.affine import Cond, IntArray, Piecewise, parse_piecewise
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
    return {int(c) for c in np.unique(colors.evaluate(places(mesh, colors.free_vars), default=0))}


def places(mesh: Mesh, names: Collection[str]) -> dict[str, IntArray]:
    """Positions on each axis of ``mesh``, ready to be broadcast against each other: all of those
    in ``names``, 0 on others."""
    counts = (mesh.size(name) if name in names else 1 for name in mesh.names)
    return dict(zip(mesh.names, np.ix_(*map(np.arange, counts)), strict=True))
