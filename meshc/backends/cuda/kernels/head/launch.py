"""The last norm and the logits as a launch."""

from __future__ import annotations

from typing import ClassVar

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.collective.launch import normed_chunk, normed_rows
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

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        norm, logits = fused.reader("norm", graph.RmsNorm), fused.reader("table", graph.Matmul)
        dims = fused.dims("table")
        (vocabulary,) = (d for d in dims if d not in logits.contract)
        hidden, words = step.module.dims[norm.dim], step.module.dims[vocabulary]
        ranks = step.module.ranks is not None
        given = "plain" if ranks else "normed"
        shape = RowsProduct(step.batch, hidden, words, step.dtype, given, "stored", norm.eps)
        gain = step.add_weight("norm_of_head", "plain", fused.tensors("norm"), (hidden,))
        (source,) = fused.tensors("table")
        table = add_table(step, source, (words, hidden), dims[0] == vocabulary)
        step.buffers[step.own("logits")] = Buffer("f32", (step.batch, words), "output")
        ahead: list[Launch] = []
        read: tuple[str, ...] = step.row("residual"), gain
        if ranks and step.tiled:
            ahead = normed_chunk(step, hidden, norm.eps, gain, last=True)
            read = (step.own("last_normed"),)
        elif ranks:
            ahead, read = normed_rows(step, hidden, norm.eps, gain), (step.row("normed"),)
        arguments = (*read, table, step.own("logits"))
        return [*ahead, product(step, step.shared("head"), shape, arguments, table)]

    def chunk_launches(self, step: Step, fused: Fused) -> list[Launch]:
        return self.launches(step, fused)
