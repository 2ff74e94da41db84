"""The attention block as a launch."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import ClassVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.attention_block import kernel
from meshc.backends.cuda.kernels.attention_block.weights import GAIN, weights_of
from meshc.backends.cuda.kernels.chunk_attention import kernel as chunk_attention
from meshc.backends.cuda.kernels.chunk_attention.launch import launches as launches_of_chunk
from meshc.backends.cuda.kernels.fused import (
    ATTENTION,
    Fused,
    FusedKernel,
)
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.launches import Launch
from meshc.ir.ops import graph


class AttentionBlock(FusedKernel):
    """Norm, projections, attention over keys and values, output projection and residual sum."""

    NAME: ClassVar[str] = "attention_block"
    PLACE: ClassVar[str] = ATTENTION
    TAKES: ClassVar[tuple[str, ...]] = (
        "residual", "norm", "query", "key", "value", "keys", "values", "output",
    )  # fmt: skip
    MAY_TAKE: ClassVar[tuple[str, ...]] = (
        "query_bias", "key_bias", "value_bias", "query_norm", "key_norm", "output_bias",
    )  # fmt: skip
    PARTIAL: ClassVar[bool] = True
    GAIN: ClassVar[str] = GAIN

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        op, plan = fused.op, _plan(step, fused)
        name = step.add_kernel(
            step.shared("attention_block"), partial(kernel.text, plan), plan.blocks, plan.cluster,
            plan.arena, THREADS,
            plan.dsmem_bytes([plan.context or step.module.capacity] * step.batch),
        )  # fmt: skip
        weights = weights_of(step, fused, plan)
        read, gain = ("normed", ()) if op.partial else ("residual", (weights.gain,))
        given = (
            step.row(read), step.row("sums"), *gain, *weights.projections, *weights.head_norms,
            *weights.output, weights.keys, weights.values,
        )  # fmt: skip
        table = step.own("pages"), weights.pages
        launch = Launch(name, (*given, *table, step.row("cached"), *weights.angles))
        step.reads_first(launch, weights.projections[0], plan.first_reads())
        step.renderers[name] = partial(kernel.text, plan, name)
        return [launch]

    def chunk_launches(self, step: Step, fused: Fused) -> list[Launch]:
        plan = _plan(step, fused)
        if plan.dataflow == "split_head":
            raise DoesNotFit("blocks of split_head share the lanes of heads, in caches as well")
        tiles = chunk_attention.plan(plan.shape, step.device, step.columns)
        return launches_of_chunk(step, tiles, weights_of(step, fused, plan), plan.clusters)


def _plan(step: Step, fused: Fused) -> kernel.AttentionPlan:
    op = fused.op
    return kernel.plan(
        _shape(step, fused), step.device, op.cluster, op.dataflow, step.module.capacity,
        op.resident, op.heads,
    )  # fmt: skip


def _shape(step: Step, fused: Fused) -> kernel.Attention:
    """Extents of the block, whose weights must be over dims in the order in which they are
    packed."""
    dims = step.module.dims
    (hidden, epsilon), keys = fused.entry(), fused.reader("keys", graph.Append)
    (lane,) = fused.readers(keys.result, graph.Matmul)[0].contract
    queries, keys_of = (fused.dims(name)[1:-1] for name in ("query", "key"))
    fused.check_dims("query", (hidden, *queries, lane), {3})
    for name in ("key", "value"):
        fused.check_dims(name, (hidden, *keys_of, lane), {2, 3})
    fused.check_dims("output", (*queries, lane, hidden), {3})
    heads, kv_heads = (prod(dims[d] for d in of) for of in (queries, keys_of))
    (softmax,) = fused.all(graph.Softmax)
    epsilons = None
    if fused.takes("query_norm"):
        query_norm, key_norm = (
            fused.reader(name, graph.RmsNorm) for name in ("query_norm", "key_norm")
        )
        epsilons = query_norm.eps, key_norm.eps
    return kernel.Attention(
        step.batch,
        dims[hidden],
        heads,
        kv_heads,
        dims[lane],
        step.dtype,
        step.page,
        epsilon,
        fused.factor_of(softmax.operands[0]),
        fused.takes("query_bias"),
        softmax.window,
        out_bias=fused.takes("output_bias"),
        head_epsilons=epsilons,
        partial=fused.op.partial,
        factor=fused.factor_behind(fused.reader("output", graph.Matmul)),
    )
