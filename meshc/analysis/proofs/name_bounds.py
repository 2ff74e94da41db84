"""Bounds of names in tile programs."""

from __future__ import annotations

from meshc.ir.mesh import fold_name
from meshc.ir.module import Module
from meshc.ir.ops.tile import For


def largest(module: Module) -> dict[str, int]:
    """The largest value of each name that is bounded: coordinates (ranks are as many as
    positions), scalars, and variables of loops whose counts are constants."""
    mesh = module.the_mesh()
    found = {name: mesh.size(name) - 1 for name in mesh.parts}
    found |= {mesh.index(name): mesh.size(name) - 1 for name in mesh.ranked}
    found |= {fold_name(axis): (mesh.size(axis) - 1) // 2 for axis in mesh.plane}
    found |= {name: high for name, (_, high) in module.scalars.items()}
    loops = [op for op in module.walk() if isinstance(op, For)]
    for op in loops:
        found[op.var] = max(op.count.constant - 1, found.get(op.var, 0))
    for op in loops:
        if not op.count.is_const:
            found.pop(op.var, None)
    return found
