"""The attention layer of a chunk of a prompt as five launches: norm, projections, heads and caches,
attention by tiles, output projection and residual sum. Of a rank the first stands in
front of the layer, and the last gives the rank's part of the next sum."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import ClassVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_attention import kernel
from meshc.backends.cuda.kernels.chunk_attention.weights import GAIN, weights_of
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.backends.cuda.kernels.chunk_product.launch import columns, normed, product
from meshc.backends.cuda.kernels.fused import Fused, FusedKernel
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph

_HEADS_THREADS = 256


class AttentionBlock(FusedKernel):
    """Norm, projections, attention over keys and values, output projection and residual sum."""

    NAME: ClassVar[str] = "attention_block"
    TAKES: ClassVar[tuple[str, ...]] = (
        "residual", "norm", "query", "key", "value", "keys", "values", "output",
    )  # fmt: skip
    MAY_TAKE: ClassVar[tuple[str, ...]] = (
        "query_bias", "key_bias", "value_bias", "query_norm", "key_norm", "output_bias",
    )  # fmt: skip
    PARTIAL: ClassVar[bool] = True
    GAIN: ClassVar[str] = GAIN

    def launches(self, chunk: Chunk, fused: Fused) -> list[Launch]:
        shape, tokens = _shape(chunk, fused), chunk.tokens
        plan = kernel.plan(shape, chunk.device, tokens)
        weights = weights_of(chunk, fused, shape)
        of_all, attended = shape.kv_heads * shape.rows, shape.heads * shape.head
        projected, queries = (chunk.own(chunk.of_stage(name)) for name in ("projected", "queries"))
        chunk.buffers[projected] = Buffer("f32", (tokens, of_all), "scratch")
        chunk.buffers[queries] = Buffer(chunk.dtype, (tokens, attended), "scratch")
        outputs = columns(chunk, chunk.of_stage("attended"), attended)
        sums, residual, count = chunk.own("sums"), chunk.own("residual"), chunk.own("count")
        qkv = ChunkProduct(tokens, shape.hidden, of_all, chunk.dtype, bias=shape.bias)
        out = ChunkProduct(
            tokens, attended, shape.hidden, chunk.dtype, "part" if shape.partial else "added",
            bias=shape.out_bias, factor=shape.factor,
        )  # fmt: skip
        heads = chunk.add_kernel(
            chunk.own("heads"), partial(kernel.heads_text, plan), tokens, Arena(), _HEADS_THREADS
        )
        attention = chunk.add_kernel(
            chunk.own("attention"), partial(kernel.text, plan), plan.blocks, plan.arena, THREADS
        )
        caches, cached = (weights.keys, weights.values, chunk.own("pages")), chunk.own("cached")
        ahead: list[Launch] = []
        if not shape.partial:
            ahead = normed(
                chunk, "attention_norm", residual, weights.gain, shape.hidden, shape.epsilon
            )
        given, ends = chunk.own("normed"), (sums,) if shape.partial else (residual, sums)
        turned = *caches, cached, *weights.angles
        return [
            *ahead,
            product(chunk, "projections", qkv, given, weights.projections, (projected,)),
            Launch(heads, (projected, *weights.head_norms, count, queries, *turned)),
            Launch(attention, (queries, *caches, count, cached, outputs)),
            product(chunk, "output", out, outputs, weights.output, ends),
        ]


def _shape(chunk: Chunk, fused: Fused) -> kernel.Attention:
    """Extents of the block, whose weights must be over dims in the order in which they are
    packed."""
    dims = chunk.module.dims
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
        dims[hidden],
        heads,
        kv_heads,
        dims[lane],
        chunk.dtype,
        chunk.page,
        epsilon,
        fused.factor_of(softmax.operands[0]),
        fused.takes("query_bias"),
        softmax.window,
        out_bias=fused.takes("output_bias"),
        head_epsilons=epsilons,
        partial=fused.op.partial,
        factor=fused.factor_behind(fused.reader("output", graph.Matmul)),
    )
