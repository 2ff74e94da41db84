"""partitioned: every element of every value has an owner, one per replica."""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def check(module: Module) -> None:
    """Prove for each distinct split that parts and lanes cover the dim, none of it twice."""
    mesh = module.the_mesh()
    joint = _joint_dims(module)
    proved: set[tuple[Split, int]] = set()
    for value in _values(module):
        kind = value.type
        if not isinstance(kind, TensorType):
            continue
        if kind.layout is None:
            fail("not-partitioned", f"%{value.name} has no layout")
        _check_axes(mesh, value, kind.layout, joint.get(value, frozenset()))
        for split in kind.layout.splits:
            if split.dim not in kind.dims:
                fail("not-partitioned", f"%{value.name} has no dim '{split.dim}' to split")
            if (split, module.dims[split.dim]) in proved:
                continue
            proved.add((split, module.dims[split.dim]))
            parts = mesh.size(split.axis) // split.copies
            _check_split(value, split, module.dims[split.dim], parts)


def _joint_dims(module: Module) -> dict[Value, frozenset[str]]:
    """For right operands of products of many rows, and the stacks they are slices of, the dims that
    are contracted: over an axis they lie as one, in row-major order."""
    found: dict[Value, frozenset[str]] = {}
    for op in reversed(list(module.walk())):
        if isinstance(op, ops.Gemm):
            found |= dict.fromkeys(op.tensors()[1:], frozenset(op.contract))
        elif isinstance(op, ops.Repeat):
            slices = zip(op.tensors(), op.regions[0].args, strict=True)
            found |= {stack: found[arg] for stack, arg in slices if arg in found}
    return found


def _check_axes(mesh: Mesh, value: Value, layout: Layout, joint: frozenset[str]) -> None:
    """Two dims that lie over one axis, unless ``joint``, would leave out the elements off the
    diagonal."""
    axes = [s.axis for s in layout.splits if s.dim not in joint]
    axes = [mesh.whole(axis) if mesh.whole(axis) in axes else axis for axis in axes]
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        dims = " and ".join(s.dim for s in layout.splits if twice in (s.axis, mesh.whole(s.axis)))
        fail(
            "not-partitioned",
            f"{dims} of %{value.name} lie over the axis {twice} at once, so only elements with "
            "equal parts have a core",
        )


def _check_split(value: Value, split: Split, extent: int, parts: int) -> None:
    element, other = Expr.var("element"), Expr.var("other")
    part = element // split.block if split.kind == "block" else element % parts
    lane = element % split.block if split.kind == "block" else element // parts
    inside = Cond.between(0, element, extent)
    owned = Cond.between(0, part, parts) & Cond.between(0, lane, split.block)
    lost = find_point(inside & ~owned)
    if lost is not None:
        fail(
            "not-partitioned",
            f"element {lost['element']} of {split.dim} has no core in %{value.name}: {split} over "
            f"{parts} cores",
        )
    same = {"element": other}
    twice = (
        inside
        & inside.substitute(same)
        & Cond.lt(element, other)
        & Cond.eq(part, part.substitute(same))
        & Cond.eq(lane, lane.substitute(same))
    )
    clash = find_point(twice)
    if clash is not None:
        fail("not-partitioned", f"two elements of {split.dim} share a lane in %{value.name}")


def _values(module: Module) -> list[Value]:
    found = [p.value for f in module.functions for p in f.params]
    ops: list[Op] = list(module.walk())
    found += [v for op in ops for v in op.results]
    found += [v for op in ops for region in op.regions for v in region.args]
    return found
