"""The form of gates: each core chooses among all scores."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import move


def top_k(way: Lowering, op: Op) -> list[Form]:
    """Cores that have the same rows choose the same; scores that lie over an axis are gathered."""
    return only("everywhere", _everywhere, op)


def _everywhere(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.TopK)
    scores, *biases = (way.env_of(operand) for operand in op.operands)
    scores = laid_out(way, scores)
    kept = tuple(s for s in way.layout_of(scores).splits if s.dim != op.dim)
    if kept != way.layout_of(scores).splits:
        scores = move(way, scores, Layout(kept), op)
    for bias in biases:
        way.place(bias, Layout(), op)
    made = mesh.TopK([scores, *biases], **op.attributes())  # type: ignore[arg-type]
    way.env[op.result] = way.emit_like(made, op.result.name, scores)
