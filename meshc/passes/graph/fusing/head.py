"""The last norm and the product that gives the logits, times a constant or not, as one kernel."""

from __future__ import annotations

from typing import ClassVar

from meshc.ir.core import Op
from meshc.ir.ops import graph, ranks
from meshc.passes.graph.flow import Flow, Mismatch, entry_of, multiplied, only_dim
from meshc.passes.graph.fusing.pattern import Match, Pattern


class Head(Pattern):
    """A norm and a product whose result the function returns, of several ranks gathered."""

    NAME: ClassVar[str] = "head"
    TITLE: ClassVar[str] = "the head"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Matmul,)

    def marked(self, flow: Flow, op: Op) -> bool:
        last = flow.module.function.body.ops[-1]
        makers = [flow.makers.get(value) for value in last.tensors()]
        gathered = [v for m in makers if isinstance(m, ranks.AllGather) for v in m.tensors()]
        made = (multiplied(flow, result)[0] for result in op.results)
        return any(logits in (*last.tensors(), *gathered) for logits in made)

    def match(self, flow: Flow, product: graph.Matmul) -> Match:
        if len(product.operands) != 2:
            raise Mismatch("one product gives the logits", product)
        hidden = only_dim(product)
        entry = entry_of(flow, product.operands[0], hidden, product)
        weight = flow.weight(product.operands[1], product)
        operands = {**entry.operands, "table": weight}
        logits, factor = multiplied(flow, product.result)
        return Match(product, (*entry.ops, product, *factor), operands, (logits,))
