"""The last norm and the logits as a launch."""

from __future__ import annotations

from typing import ClassVar

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.fused import LOGITS, Fused, FusedKernel
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.kernels.rows_product.launch import product
from meshc.backends.cuda.kernels.tables import add_table
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph


class Head(FusedKernel):
    """A norm and the product that gives the logits."""

    NAME: ClassVar[str] = "head"
    PLACE: ClassVar[str] = LOGITS
    TAKES: ClassVar[tuple[str, ...]] = ("residual", "norm", "table")
    GAIN: ClassVar[str] = "norm_of_head"

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        (hidden_dim, epsilon), logits = fused.entry(), fused.reader("table", graph.Matmul)
        dims = fused.dims("table")
        (vocabulary,) = (d for d in dims if d not in logits.contract)
        hidden, words = step.module.dims[hidden_dim], step.module.dims[vocabulary]
        normed = fused.takes("normed")
        given = "plain" if normed else "normed"
        shape = RowsProduct(
            step.batch, hidden, words, step.dtype, given, "stored", epsilon,
            factor=fused.factor_behind(logits), last=step.tiled and not normed,
        )  # fmt: skip
        (source,) = fused.tensors("table")
        table = add_table(step, source, (words, hidden), dims[0] == vocabulary)
        step.buffers[step.own("logits")] = Buffer("f32", (step.batch, words), "output")
        if normed:
            read: tuple[str, ...] = (step.own("last_normed") if step.tiled else step.row("normed"),)
        else:
            gain = step.add_weight(self.GAIN, "plain", fused.tensors("norm"), (hidden,))
            # Of many tokens of a prompt the last one's row is found when it is read, so launches do
            # not depend on how many there are.
            many = step.own("residual"), step.own("count"), gain
            read = many if step.tiled else (step.row("residual"), gain)
        arguments = (*read, table, step.own("logits"))
        name = step.own("head") if shape.last else step.shared("head")
        return [product(step, name, shape, arguments, table)]

    def chunk_launches(self, step: Step, fused: Fused) -> list[Launch]:
        return self.launches(step, fused)
