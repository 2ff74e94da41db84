"""The look-up of token ids in a table, times a constant or not, as one kernel."""

from __future__ import annotations

from typing import ClassVar

from meshc.ir.core import Op
from meshc.ir.ops import graph
from meshc.passes.graph.flow import Flow, Mismatch, multiplied
from meshc.passes.graph.fusing.pattern import Match, Pattern


class Embed(Pattern):
    """A look-up of token ids."""

    NAME: ClassVar[str] = "embed"
    TITLE: ClassVar[str] = "an embedding"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Embed,)

    def match(self, flow: Flow, op: graph.Embed) -> Match:
        if len(op.operands) > 2:
            raise Mismatch(f"{op.NAME} {op.result} adds learned positions", op)
        table = flow.weight(op.operands[1], op)
        rows, factor = multiplied(flow, op.result)
        return Match(op, (op, *factor), {"tokens": op.operands[0], "table": table}, (rows,))
