"""The attention block as a launch."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import ClassVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.attention_block import kernel
from meshc.backends.cuda.kernels.collective.launch import normed_rows
from meshc.backends.cuda.kernels.fused import (
    ATTENTION,
    Fused,
    FusedKernel,
)
from meshc.backends.cuda.program import Launch
from meshc.ir.ops import graph

_BIASES = ("query_bias", "key_bias", "value_bias")


class AttentionBlock(FusedKernel):
    """Norm, projections, attention over keys and values, output projection and residual sum."""

    NAME: ClassVar[str] = "attention_block"
    PLACE: ClassVar[str] = ATTENTION
    TAKES: ClassVar[tuple[str, ...]] = (
        "residual", "norm", "query", "key", "value", "keys", "values", "output",
    )  # fmt: skip
    MAY_TAKE: ClassVar[tuple[str, ...]] = (*_BIASES, "query_norm", "key_norm", "output_bias")
    PARTIAL: ClassVar[bool] = True

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        op, shape = fused.op, _shape(step, fused)
        cosines, sines = step.add_angles(rope_frequencies(fused.all(graph.Rope)[0], shape.head))
        plan = kernel.plan(
            shape, op.cluster, op.dataflow, step.module.capacity, op.resident, op.heads
        )
        name = step.add_kernel(
            step.shared("attention_block"), partial(kernel.text, plan), plan.blocks, plan.cluster,
            plan.arena, THREADS,
            plan.dsmem_bytes([plan.context or step.module.capacity] * step.batch),
        )  # fmt: skip
        parts = op.cluster if op.dataflow == "split_head" else 1
        hidden, of_heads = shape.hidden, (shape.kv_heads, shape.sizes.rows)
        gain = step.add_weight("norm_of_attention", "plain", fused.tensors("norm"), (hidden,))
        sources = fused.tensors("query", "key", "value")
        qkv = step.add_matrix("qkv", "projections", sources, (*of_heads, hidden), parts)
        ahead = normed_rows(step, shape.hidden, shape.epsilon, gain) if op.partial else []
        given = [step.row("normed"), step.row("sums"), qkv]
        if not op.partial:
            given = [step.row("residual"), step.row("sums"), gain, qkv]
        if shape.bias:
            biases = fused.tensors(*_BIASES)
            given.append(step.add_weight("bias_of_qkv", "projections", biases, of_heads, parts))
        if shape.head_epsilons:
            for what, name_of in (("queries", "query_norm"), ("keys", "key_norm")):
                source = fused.tensors(name_of)
                given.append(step.add_weight(f"norm_of_{what}", "plain", source, (shape.head,)))
        outputs = (plan.clusters, parts, hidden, op.heads * shape.head // parts)
        given.append(step.add_matrix("out", "output", fused.tensors("output"), outputs, parts))
        if shape.out_bias:
            bias = fused.tensors("output_bias")
            given.append(step.add_weight("bias_of_out", "plain", bias, (hidden,)))
        pages = step.batch * -(-step.module.capacity // step.page)
        pool = (pages, shape.kv_heads, step.page, shape.head)
        given += [step.add_cache("keys", pool), step.add_cache("values", pool)]
        table = step.own("pages"), pages // step.batch
        launch = Launch(name, (*given, *table, step.row("cached"), cosines, sines))
        step.reads_first(launch, qkv, plan.first_reads())
        step.renderers[name] = partial(kernel.text, plan, name)
        return [*ahead, launch]


def _shape(step: Step, fused: Fused) -> kernel.Attention:
    """Extents of the block, whose weights must be over dims in the order in which they are
    packed."""
    dims = step.module.dims
    norm, keys = fused.reader("norm", graph.RmsNorm), fused.reader("keys", graph.Append)
    (lane,) = fused.readers(keys.result, graph.Matmul)[0].contract
    queries, keys_of = (fused.dims(name)[1:-1] for name in ("query", "key"))
    fused.check_dims("query", (norm.dim, *queries, lane), {3})
    for name in ("key", "value"):
        fused.check_dims(name, (norm.dim, *keys_of, lane), {2, 3})
    fused.check_dims("output", (*queries, lane, norm.dim), {3})
    heads, kv_heads = (prod(dims[d] for d in of) for of in (queries, keys_of))
    scales = fused.all(graph.Scale)
    epsilons = None
    if fused.takes("query_norm"):
        query_norm, key_norm = (
            fused.reader(name, graph.RmsNorm) for name in ("query_norm", "key_norm")
        )
        epsilons = query_norm.eps, key_norm.eps
    return kernel.Attention(
        step.batch,
        dims[norm.dim],
        heads,
        kv_heads,
        dims[lane],
        step.dtype,
        step.page,
        norm.eps,
        scales[0].factor if scales else 1.0,
        fused.takes("query_bias"),
        out_bias=fused.takes("output_bias"),
        head_epsilons=epsilons,
        partial=fused.op.partial,
    )
