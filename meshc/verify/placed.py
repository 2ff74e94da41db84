"""placed: neighbours in rank of an interleaved axis are at most two hops apart."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.analysis.layout.coordinates import ring_core
from meshc.analysis.proofs.isl import find_point
from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

_MOST_HOPS = 2
_RANK, _OTHER = Expr.var("p"), Expr.var("other")


def check(module: Module) -> None:
    """Prove of each ring, whatever its length, that it visits every core once, at most two hops
    from the one before."""
    mesh = module.the_mesh()
    for axis in mesh.ranked:
        if mesh.ring(axis):
            _check_ring(axis, ring_core(mesh.size(axis)), mesh.size(axis))


def _check_ring(axis: str, core: Piecewise, size: int) -> None:
    ranks = Cond.between(0, _RANK, size)
    for known, here in _branches(core):
        outside = ranks & known & ~Cond.between(0, here, size)
        if find_point(outside) is not None:
            fail("not-placed", f"the ring of axis {axis} leaves the axis")
        for known_other, there in _branches(core.substitute({"p": _OTHER})):
            pair = ranks & known & known_other & Cond.between(0, _OTHER, size)
            if find_point(pair & Cond.lt(_OTHER, _RANK) & Cond.eq(here, there)) is not None:
                fail("not-placed", f"the ring of axis {axis} misses a core")
            follows = Cond.eq(_OTHER, _RANK - 1) | Cond.eq(_RANK, 0) & Cond.eq(_OTHER, size - 1)
            apart = Cond.gt(here - there, _MOST_HOPS) | Cond.gt(there - here, _MOST_HOPS)
            far = find_point(pair & follows & apart)
            if far is not None:
                fail(
                    "not-placed",
                    f"axis {axis}: ranks {far['p'] - 1} and {far['p']} are too far apart",
                )


def _branches(function: Piecewise) -> Iterator[tuple[Cond, Expr]]:
    """The values of ``function``, each with where it is the one that counts."""
    earlier = Cond.true()
    for cond, value in function.pieces:
        yield cond & earlier, value
        earlier = earlier & ~cond
