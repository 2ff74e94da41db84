"""The look-up of tokens as a launch, which also starts the residual stream."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.embed import kernel
from meshc.backends.cuda.kernels.fused import Fused, FusedKernel
from meshc.backends.cuda.kernels.vocabulary_tables import add_table
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph


class Embed(FusedKernel):
    """Rows of a table by token ids."""

    NAME: ClassVar[str] = "embed"
    TAKES: ClassVar[tuple[str, ...]] = ("tokens", "table")

    def launches(self, chunk: Chunk, fused: Fused) -> list[Launch]:
        lookup, dims = fused.reader("table", graph.Embed), fused.dims("table")
        words = chunk.module.dims[lookup.dim]
        (hidden,) = (chunk.module.dims[d] for d in dims if d != lookup.dim)
        ranks = chunk.module.ranks is not None
        sums = chunk.dtype if ranks else "f32"
        text = partial(
            kernel.text, hidden=hidden, vocabulary=words, dtype=chunk.dtype, sums=sums,
            factor=fused.factor_behind(lookup),
        )  # fmt: skip
        name = chunk.add_kernel(chunk.own("embed"), text, chunk.tokens, Arena(), kernel.THREADS)
        (source,) = fused.tensors("table")
        table = add_table(chunk, source, (words, hidden), dims[0] == lookup.dim)
        stream = (chunk.own("residual"), chunk.own("sums"))
        roles = ("scratch", "symmetric" if ranks else "scratch")
        for part, kind, role in zip(stream, ("f32", sums), roles, strict=True):
            chunk.buffers[part] = Buffer(kind, (chunk.tokens, hidden), role)
        return [Launch(name, (chunk.own("tokens"), table, *stream))]
