"""The attention block of a fused decode graph as a launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from meshc.analysis.blocks import THREADS
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.fused_body import Body, check_dims
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels import attention
from meshc.backends.cuda.program import Buffer, Launch
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value


def attention_block(step: Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int) -> Launch:
    """Norm, projections, attention over keys and values, output projection and residual sum.

    Raises ``cuda-shape`` for weights in another order, :class:`DoesNotFit` for too large blocks.
    """
    body = Body(op, outer)
    norm, keys = body.one(graph.RmsNorm), body.all(graph.Append)[0]
    scores = body.users(keys.results[0], graph.Matmul)[0]
    last = op.operands.index(body.operand(body.all(graph.Matmul)[-1], 1))
    weights, biases = body.inputs(2, 5), body.inputs(5, last - 2)
    out, out_bias = body.inputs(last, last + 1), body.inputs(last + 1)
    lane = scores.contract[0]
    head = step.module.dims[lane]
    queries, keys_of = (tensor_type(op.operands[n]).dims[1:-1] for n in (2, 3))
    for place, between in ((2, queries), (3, keys_of), (4, keys_of)):
        check_dims(op, place, (norm.dim, *between, lane), {3} if place == 2 else {2, 3})
    check_dims(op, last, (*queries, lane, norm.dim), {3})
    heads, kv_heads = (prod(step.module.dims[d] for d in dims) for dims in (queries, keys_of))
    factor = body.all(graph.Scale)
    shape = attention.Attention(
        step.batch,
        step.module.dims[norm.dim],
        heads,
        kv_heads,
        head,
        step.dtype,
        step.page,
        norm.eps,
        factor[0].factor if factor else 1.0,
        bool(biases),
        out_bias=bool(out_bias),
    )
    rope = body.all(graph.Rope)[0]
    step.frequencies = rope_frequencies(rope, head)
    plan = attention.plan(
        shape, op.cluster, op.dataflow, step.module.capacity, op.resident, op.heads
    )
    parts = op.cluster if op.dataflow == "split_head" else 1
    name = step.shared("attention_block")
    step.add_kernel(
        name, attention.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes([plan.context or step.module.capacity] * step.batch),
    )  # fmt: skip
    step.first_reads[name] = plan.first_reads("qkv[]")
    step.renderers[name] = partial(attention.text, plan, name)
    step.add_weight("norm_of_attention", "plain", (body.name(norm, 1),), (shape.hidden,), layers)
    step.add_matrix(
        "qkv", "projections", weights, (kv_heads, shape.rows, shape.hidden), layers, parts
    )
    outputs = (plan.clusters, parts, shape.hidden, op.heads * head // parts)
    step.add_matrix("out", "output", out, outputs, layers, parts)
    if biases:
        step.add_weight("bias_of_qkv", "projections", biases, (kv_heads, shape.rows), layers, parts)
    if out_bias:
        step.add_weight("bias_of_out", "plain", out_bias, (shape.hidden,), layers)
    pages = step.batch * -(-step.module.capacity // step.page)
    pool = (layers, pages, kv_heads, step.page, head)
    step.buffers["keys"] = Buffer(step.dtype, pool, "state")
    step.buffers["values"] = Buffer(step.dtype, pool, "state")
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), "norm_of_attention[]", "qkv[]",
            *(["bias_of_qkv[]"] if biases else []),
            "out[]",
            *(["bias_of_out[]"] if out_bias else []),
            "keys[]", "values[]", step.own("pages"), pages // step.batch, step.row("cached"),
            "cosines", "sines",
        ),
    )  # fmt: skip
