"""Walking a tile program with what is known at each statement: loops, guards, scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meshc.analysis.layout.coordinates import coordinate_functions, position
from meshc.analysis.proofs.isl import Scope
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh, fold_name, rank_name
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.support.shared import shared


@dataclass(frozen=True)
class Context:
    """Conditions under which a block runs: loop ranges and guards of enclosing statements.

    ``loop`` is the innermost loop, if the block is its body, and ``around`` what is known there.
    """

    known: Cond
    sweeps: tuple[tile.Sweep, ...] = ()
    loop: tile.For | None = None
    around: Cond = field(default_factory=Cond.true)


def plain(mesh: Mesh, cond: Cond) -> Cond:
    """``cond`` with ranks and segment coordinates written in terms of the position."""
    return cond.substitute(_definitions(mesh))


def plain_expr(mesh: Mesh, value: Expr) -> Expr:
    """``value`` with ranks and segment coordinates written in terms of the position."""
    return value.substitute(_definitions(mesh))


@shared
def _definitions(mesh: Mesh) -> Mapping[str, Expr | int]:
    factors = [factor.name for axis in mesh.axes for factor in axis.factors]
    found: dict[str, Expr | int] = {name: position(mesh, name) for name in factors}
    for axis in mesh.ranked:
        here = position(mesh, axis)
        ring = mesh.ring(axis) and mesh.size(axis) > 2
        found[rank_name(axis)] = Expr.call(f"ring_{axis}", here) if ring else here
    for axis in mesh.plane:
        found[fold_name(axis)] = Expr.call(fold_name(axis), Expr.var(axis))
    return MappingProxyType(found)


def mesh_scope(module: Module) -> Scope:
    """Cores of the mesh and values of the run-time scalars."""
    mesh = module.the_mesh()
    bounds = [
        Cond.between(0, Expr.var(name), mesh.size(name))
        for name in (*mesh.plane, *mesh.names[:-2])
        if name in mesh.plane or mesh.size(name) > 1
    ]
    for name, (low, high) in module.scalars.items():
        bounds.append(Cond.between(low, Expr.var(name), high + 1))
    return Scope(Cond.all(bounds), coordinate_functions(mesh))


def blocks(module: Module) -> Iterator[tuple[Block, Context]]:
    """Every block of every program, with its context."""
    for program in module.programs:
        yield from _nested(program.body, Context(Cond.true()))


def _nested(block: Block, context: Context) -> Iterator[tuple[Block, Context]]:
    yield block, context
    for op in block.ops:
        for region in op.regions:
            yield from _nested(region, inside(op, context))


def inside(op: Op, context: Context) -> Context:
    """What is known in the body of ``op``, which stands in a block of ``context``."""
    known = context.known & op.when if op.when is not None else context.known
    if isinstance(op, tile.For):
        within = known & Cond.between(0, Expr.var(op.var), op.count)
        return Context(within, context.sweeps, op, known)
    if isinstance(op, tile.Sweep):
        return Context(known, (*context.sweeps, op))
    return Context(known, context.sweeps)


def guard_of(op: Op, context: Context) -> Cond:
    """Where ``op`` runs."""
    return context.known & op.when if op.when is not None else context.known


def point_text(mesh: Mesh, point: dict[str, int]) -> str:
    """A witness in words: the core first, then loops and scalars."""
    core = ", ".join(f"{n}={point[n]}" for n in mesh.names if n in point)
    rest = ", ".join(f"{n}={v}" for n, v in point.items() if n not in mesh.names)
    return f"core ({core})" + (f" with {rest}" if rest else "")
