"""The last norm and the logits as a launch."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.fused import Fused, FusedKernel
from meshc.backends.cuda.kernels.head import kernel
from meshc.backends.cuda.kernels.vocabulary_tables import add_table
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph


class Head(FusedKernel):
    """A norm and the product that gives the logits of the last token. That is found when it is
    read, so that launches do not depend on how many tokens there are; of ranks it is normed by all
    of them together, in front."""

    NAME: ClassVar[str] = "head"
    TAKES: ClassVar[tuple[str, ...]] = ("residual", "norm", "table")
    GAIN: ClassVar[str] = "norm_of_head"

    def launches(self, chunk: Chunk, fused: Fused) -> list[Launch]:
        (hidden_dim, epsilon), logits = fused.entry(), fused.reader("table", graph.Matmul)
        dims = fused.dims("table")
        (vocabulary,) = (d for d in dims if d not in logits.contract)
        hidden, words = chunk.module.dims[hidden_dim], chunk.module.dims[vocabulary]
        normed = fused.takes("normed")
        shape = kernel.Head(
            hidden, words, chunk.dtype, not normed, epsilon, fused.factor_behind(logits)
        )
        (source,) = fused.tensors("table")
        table = add_table(chunk, source, (words, hidden), dims[0] == vocabulary)
        chunk.buffers[chunk.own("logits")] = Buffer("f32", (1, words), "output")
        if normed:
            read: tuple[str, ...] = (chunk.own("last_normed"),)
        else:
            gain = chunk.add_weight(self.GAIN, "plain", fused.tensors("norm"), (hidden,))
            read = chunk.own("residual"), chunk.own("count"), gain
        plan = kernel.plan(shape, chunk.device)
        name = chunk.add_kernel(
            chunk.own("head"), partial(kernel.text, plan), plan.blocks, plan.arena, THREADS
        )
        return [Launch(name, (*read, table, chunk.own("logits")))]
