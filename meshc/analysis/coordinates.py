"""Coordinates of a core: its position, its place in a factored axis, its rank on a ring.

Names usable in guards, view starts, kernel parameters and ports: ``r``, ``y``, ``x`` (position),
``xh`` and ``xd`` (segment of x and position inside it), ``rank_y``, ``rank_x``, ``rank_xd``.
Functions of one argument, used by ports: ``ring_A(position)`` gives the rank and
``core_A(rank)`` the position on axis A.
"""

from __future__ import annotations

from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.mesh import Mesh

RANKED_AXES = ("y", "x", "xd")
_P = Expr.var("p")


def ring_rank(n: int) -> Piecewise:
    """Rank of position ``p`` on an interleaved axis of ``n`` cores (WaferLLM Algorithm 1)."""
    if n <= 2:
        return Piecewise.single(_P)
    return Piecewise.of([(Cond.eq(_P % 2, 0), _P // 2), (Cond.eq(_P % 2, 1), n - (_P + 1) // 2)])


def ring_core(n: int) -> Piecewise:
    """Position of rank ``p`` on an interleaved axis of ``n`` cores, the inverse of ring_rank."""
    if n <= 2:
        return Piecewise.single(_P)
    return Piecewise.of([(Cond.lt(_P * 2, n), _P * 2), (Cond.ge(_P * 2, n), 2 * n - _P * 2 - 1)])


def position(mesh: Mesh, axis: str) -> Expr:
    """Position of a core on ``axis`` in terms of ``r``, ``y`` and ``x``."""
    if mesh.segments == 1 and axis in ("xh", "xd"):
        return Expr.var("x") if axis == "xd" else Expr.const(0)
    if axis == "xh":
        return Expr.var("x") // mesh.size("xd")
    if axis == "xd":
        return Expr.var("x") % mesh.size("xd")
    return Expr.var(axis)


def coordinate_values(mesh: Mesh) -> dict[str, Piecewise]:
    """Every coordinate name as a piecewise function of ``r``, ``y`` and ``x``."""
    found = {name: Piecewise.single(Expr.var(name)) for name in ("r", "y", "x")}
    found["xh"] = Piecewise.single(position(mesh, "xh"))
    found["xd"] = Piecewise.single(position(mesh, "xd"))
    for axis in RANKED_AXES:
        rank = ring_rank(mesh.size(axis)) if mesh.ring(axis) else Piecewise.single(_P)
        found[f"rank_{axis}"] = rank.substitute({"p": position(mesh, axis)})
    return found


def coordinate_functions(mesh: Mesh) -> dict[str, Piecewise]:
    """The functions ``ring_A`` and ``core_A`` of one variable ``p``."""
    found = {}
    for axis in RANKED_AXES:
        ring = mesh.ring(axis)
        found[f"ring_{axis}"] = ring_rank(mesh.size(axis)) if ring else Piecewise.single(_P)
        found[f"core_{axis}"] = ring_core(mesh.size(axis)) if ring else Piecewise.single(_P)
    return found
