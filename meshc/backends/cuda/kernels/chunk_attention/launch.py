"""The attention layer of a chunk of a prompt as five launches: norm, projections, heads and caches,
attention by tiles, output projection and residual sum. Of a rank the first stands in
front of the layer, and the last gives the rank's part of the next sum."""

from __future__ import annotations

from functools import partial

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.attention_block.weights import AttentionWeights
from meshc.backends.cuda.kernels.chunk_attention import kernel
from meshc.backends.cuda.kernels.rows_product.chunk import ChunkProduct
from meshc.backends.cuda.kernels.rows_product.chunk_launch import columns, normed, product
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer

_HEADS_THREADS = 256


def launches(
    step: Step, plan: kernel.ChunkAttentionPlan, weights: AttentionWeights, clusters: int
) -> list[Launch]:
    """The launches of ``plan`` over the ``weights`` of decode steps, whose output projection has a
    part for each of ``clusters``. Raises DoesNotFit."""
    shape, tokens = plan.shape, step.columns
    of_all, attended = shape.kv_heads * shape.sizes.rows, shape.heads * shape.head
    projected, queries = step.own(step.of_stage("projected")), step.own(step.of_stage("queries"))
    step.buffers[projected] = Buffer("f32", (tokens, of_all), "scratch")
    step.buffers[queries] = Buffer(step.dtype, (tokens, attended), "scratch")
    outputs = columns(step, step.of_stage("attended"), attended)
    sums, residual, count = step.own("sums"), step.own("residual"), step.own("count")
    qkv = ChunkProduct(tokens, shape.hidden, of_all, step.dtype, bias=shape.bias)
    out = ChunkProduct(
        tokens, attended, shape.hidden, step.dtype, "part" if shape.partial else "added", clusters,
        bias=shape.out_bias, factor=shape.factor,
    )  # fmt: skip
    heads = step.add_kernel(
        step.own("heads"), partial(kernel.heads_text, plan), tokens, 1, Arena(), _HEADS_THREADS
    )
    attention = step.add_kernel(
        step.own("attention"), partial(kernel.text, plan), plan.blocks, 1, plan.arena, THREADS
    )
    caches, cached = (weights.keys, weights.values, step.own("pages")), step.own("cached")
    ahead: list[Launch] = []
    if not shape.partial:
        ahead = normed(step, "attention_norm", residual, weights.gain, shape.hidden, shape.epsilon)
    ends = (sums,) if shape.partial else (residual, sums)
    return [
        *ahead,
        product(step, "projections", qkv, step.own("normed"), weights.projections, (projected,)),
        Launch(
            heads,
            (projected, *weights.head_norms, count, queries, *caches, cached, *weights.angles),
        ),
        Launch(attention, (queries, *caches, count, cached, outputs)),
        product(step, "output", out, outputs, weights.output, ends),
    ]
