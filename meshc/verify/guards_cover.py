"""guards_cover: guards speak of what exists, and sweeps reach every core they run on."""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.ir.affine import Cond
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail
from meshc.verify.walk import blocks, mesh_scope, plain, plain_expr, point_text


def check(module: Module) -> None:
    """Names are known; the rank of each sweep lies within its count on every core it runs on."""
    scope, mesh = mesh_scope(module), module.the_mesh()
    for block, context in blocks(module):
        known = mesh.coordinates | set(module.scalars) | context.known.free_vars
        for op in block.ops:
            guard = op.when
            unknown = sorted(guard.free_vars - known) if guard is not None else []
            if unknown:
                fail("guards-uncovered", f"the guard names '{unknown[0]}', unknown here", op.span)
            if isinstance(op, tile.Sweep):
                where = context.known & guard if guard is not None else context.known
                rank = plain_expr(mesh, op.rank)
                outside = plain(mesh, where) & ~Cond.between(0, rank, op.count)
                witness = find_point(outside, (), scope)
                if witness is not None:
                    fail(
                        "guards-uncovered",
                        f"the sweep never reaches {point_text(mesh, witness)}: its rank is not in "
                        f"0..{op.count - 1}",
                        op.span,
                    )
