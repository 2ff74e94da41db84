"""The look-up of tokens as a launch, which also starts the residual stream."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.embed import kernel
from meshc.backends.cuda.kernels.fused import LOOK_UP, Fused, FusedKernel
from meshc.backends.cuda.kernels.tables import add_table
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph


class Embed(FusedKernel):
    """Rows of a table by token ids."""

    NAME: ClassVar[str] = "embed"
    PLACE: ClassVar[str] = LOOK_UP
    TAKES: ClassVar[tuple[str, ...]] = ("tokens", "table")

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        lookup, dims = fused.reader("table", graph.Embed), fused.dims("table")
        words = step.module.dims[lookup.dim]
        (hidden,) = (step.module.dims[d] for d in dims if d != lookup.dim)
        ranks = step.module.ranks is not None
        sums = step.dtype if ranks and step.tiled else "f32"
        text = partial(
            kernel.text, hidden=hidden, vocabulary=words, dtype=step.dtype, sums=sums,
            factor=fused.factor_behind(lookup),
        )  # fmt: skip
        name = step.add_kernel(step.own("embed"), text, step.columns, 1, Arena(), kernel.THREADS)
        (source,) = fused.tensors("table")
        table = add_table(step, source, (words, hidden), dims[0] == lookup.dim)
        stream = (step.own("residual"), step.own("sums"))
        roles = ("scratch", "symmetric" if ranks else "scratch")
        for part, kind, role in zip(stream, ("f32", sums), roles, strict=True):
            step.buffers[part] = Buffer(kind, (step.columns, hidden), role)
        return [Launch(name, (step.own("tokens"), table, *stream))]

    def chunk_launches(self, step: Step, fused: Fused) -> list[Launch]:
        return self.launches(step, fused)
