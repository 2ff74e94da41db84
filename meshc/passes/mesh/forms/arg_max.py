"""The form of a choice: the largest element of all cores, then who has it first.

Both are reductions of one number that flows through the cores, which add to what passes. Pairs of a
number and its index would have to be compared on every core on the way.
"""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import graph, mesh
from meshc.ir.types import DType, Layout, TensorType
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.softmax import has_pads
from meshc.support.diagnostics import fail


def arg_max(way: Lowering, op: Op) -> list[Form]:
    """``largest_first``: the maximum of the cores between which the dim is divided, then the first
    index at which an element is equal to it. The index ends on the first of these cores."""
    return only("largest_first", _largest_first, op)


def _largest_first(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.ArgMax)
    x, name = laid_out(way, way.env_of(op.operands[0])), op.result.name
    kind = way.type_of(x)
    split = (kind.layout or Layout()).split_of(op.dim)
    if split is not None and (split.kind != "block" or split.skew or split.copies > 1):
        fail("unsupported-layout", f"a choice among {op.dim}, which lies as {split}", op.span)
    if has_pads(way, kind, op.dim):
        x = way.emit(mesh.Mask([x], dim=op.dim, kind="none"), (f"{name}.x", kind))[0]
    dims = tuple(d for d in kind.dims if d != op.dim)
    splits = way.restricted(x, dims).splits
    over = (split.axis,) if split is not None and way.mesh.size(split.axis) > 1 else ()
    roots = kind.layout.roots if kind.layout else ()
    own, whole = Layout(splits, over, roots), Layout(splits, (), roots)
    most = TensorType(kind.dtype, dims, own)
    (top,) = way.emit(mesh.RowMax([x], dim=op.dim), (f"{name}.top", most))
    if over:
        made = mesh.AllReduce([top], axis=over[0], reduce="max")
        (top,) = way.emit(made, (top.name, most.with_layout(whole)))
    index = TensorType(DType.F32, dims, own)
    (found,) = way.emit(mesh.FirstAt([x, top], dim=op.dim), (f"{name}.before", index))
    if over:
        index = index.with_layout(Layout(splits, (), (*roots, *over)))
        (found,) = way.emit(mesh.Reduce([found], axis=over[0], reduce="max"), (found.name, index))
    (way.env[op.result],) = way.emit(mesh.Scale([found], factor=-1.0), (name, index))
