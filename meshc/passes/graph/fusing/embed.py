"""The look-up of token ids in a table, times a constant or not, as one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from meshc.devices import Device
from meshc.ir.core import Op
from meshc.ir.ops import graph
from meshc.passes.graph.flow import Flow, Mismatch, dims_of, multiplied
from meshc.passes.graph.fusing.pattern import Choice, Match, Pattern
from meshc.passes.graph.fusing.rows import Rows, check_rows


class Embed(Pattern[Rows]):
    """A look-up of token ids."""

    NAME: ClassVar[str] = "embed"
    TITLE: ClassVar[str] = "an embedding"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Embed,)

    def match(self, flow: Flow, op: graph.Embed) -> Match[Rows]:
        if len(op.operands) > 2:
            raise Mismatch(f"{op.NAME} {op.result} adds learned positions", op)
        table = flow.weight(op.operands[1], op)
        width = flow.extent(d for d in dims_of(table) if d != op.dim)
        batch = flow.extent(dims_of(op.operands[0]))
        operands = {"tokens": op.operands[0], "table": table}
        rows, factor = multiplied(flow, op.result)
        return Match(op, (op, *factor), operands, (rows,), Rows(batch, ((width, batch),)))

    def choose(self, device: Device, match: Match[Rows], asked: Mapping[str, Any]) -> Choice:
        check_rows(match.sizes)
        ((width, batch),) = match.sizes.matrices
        return Choice(graph.Fuse(kernel=self.NAME), f"embed: {batch} rows of {width} values")
