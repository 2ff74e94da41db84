"""Coordinates of a core: its position, its place in a factored axis, its rank on a ring.

Names usable in guards, view starts, kernel parameters and ports are those of the mesh: each axis
(the position on it), each factor (the part of the axis, the place inside it), ``rank_A`` for an
axis or factor A that may be in ring order, and ``fold_A``, how many cores lie between a core and
the middle of an axis A of the plane. Functions of one argument, used by ports:
``ring_A(position)`` gives the rank and ``core_A(rank)`` the position on axis A.
"""

from __future__ import annotations

from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.mesh import Mesh, fold_name, rank_name

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


def fold(n: int) -> Piecewise:
    """How many cores of an axis of ``n`` lie between position ``p`` and its middle; of an odd
    number the second half is the longer one."""
    middle = n // 2
    return Piecewise.of([(Cond.ge(_P, middle), _P - middle), (Cond.true(), middle - 1 - _P)])


def position(mesh: Mesh, axis: str) -> Expr:
    """Position of a core on an axis, or on a factor of one, in terms of the axes."""
    whole = mesh.parts[mesh.whole(axis)]
    here = Expr.var(whole.name)
    if axis == whole.name:
        return here
    group, inner = whole.factors
    if group.size == 1:
        return here if axis == inner.name else Expr.const(0)
    return here // inner.size if axis == group.name else here % inner.size


def coordinate_values(mesh: Mesh) -> dict[str, Piecewise]:
    """Every coordinate name as a piecewise function of the axes."""
    found = {name: Piecewise.single(position(mesh, name)) for name in mesh.parts}
    for axis in mesh.ranked:
        rank = ring_rank(mesh.size(axis)) if mesh.ring(axis) else Piecewise.single(_P)
        found[rank_name(axis)] = rank.substitute({"p": position(mesh, axis)})
    for axis in mesh.plane:
        found[fold_name(axis)] = fold(mesh.size(axis)).substitute({"p": Expr.var(axis)})
    return found


def coordinate_functions(mesh: Mesh) -> dict[str, Piecewise]:
    """The functions ``ring_A``, ``core_A`` and ``fold_A`` of one variable ``p``."""
    found = {fold_name(axis): fold(mesh.size(axis)) for axis in mesh.plane}
    for axis in mesh.ranked:
        ring = mesh.ring(axis)
        found[f"ring_{axis}"] = ring_rank(mesh.size(axis)) if ring else Piecewise.single(_P)
        found[f"core_{axis}"] = ring_core(mesh.size(axis)) if ring else Piecewise.single(_P)
    return found
