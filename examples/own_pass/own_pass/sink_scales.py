"""sink-scales: scale what a product gives, not what it takes, where that is less."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import meshc
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.ir.values import Value


@dataclass(frozen=True)
class SinkScales(meshc.Pass):
    """Move a scale behind the product that reads it, where the product's result is smaller.

    The scale's operand must have no other reader. ``always`` moves it whatever the sizes.
    """

    NAME: ClassVar[str] = "sink-scales"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)

    always: bool = False

    def run(self, module: meshc.Module, report: meshc.Diagnostics) -> meshc.Module:
        """Edit ``module`` in place; every scale that moves is a remark."""
        rewriter = Rewriter(module)
        for scale in [op for op in module.walk() if isinstance(op, graph.Scale)]:
            (scaled,) = scale.results
            readers = rewriter.users(scaled)
            if len(readers) != 1 or not isinstance(readers[0], graph.Matmul):
                continue
            (product,) = readers
            if len(product.results) != 1 or product.operands.count(scaled) != 1:
                continue
            if self.always or _elements(module, product.results[0]) < _elements(module, scaled):
                _sink(rewriter, scale, product)
                report.remark("scale-sunk", f"{product.results[0]} is scaled", scale.span)
        return module


def _elements(module: meshc.Module, value: Value) -> int:
    return prod(tensor_type(value).shape(module.dims))


def _sink(rewriter: Rewriter, scale: graph.Scale, product: graph.Matmul) -> None:
    (result,) = product.results
    after = graph.Scale([result], factor=scale.factor)
    outcome = rewriter.after(product).one(after, result.name)
    rewriter.replace_uses({result: outcome})
    after.operands = [result]
    rewriter.replace_op(scale, scale.tensors())
