"""The form of rotary position embedding: pairs of lanes turn where they are."""

from __future__ import annotations

from dataclasses import fields

from meshc.ir.core import Op
from meshc.ir.ops import graph, mesh
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def rope(way: Lowering, op: Op) -> list[Form]:
    """Each pair whole on one core."""
    return only("local", _local, op)


def _local(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Rope)
    value = laid_out(way, way.env_of(op.operands[0]))
    if op.style != "interleaved":
        fail(
            "unsupported-op",
            "rotate-half RoPE whose weights cannot be reordered into pairs",
            op.span,
            help="canonicalize reorders them when the rotated value comes straight from a "
            "matmul with a weight",
        )
    split = way.layout_of(value).split_of(op.dim)
    if split is not None and split.block % 2:
        fail(
            "unsupported-layout",
            f"'{value.name}' lies as {way.type_of(value).layout}, which parts pairs that rotate",
            op.span,
            help=f"choose a mesh whose cores hold whole pairs of {op.dim}",
        )
    made = mesh.Rope(**{f.name: getattr(op, f.name) for f in fields(op)})
    made.operands, made.results, made.regions = [value], [], []
    way.env[op.result] = way.emit_like(made, op.result.name, value)
