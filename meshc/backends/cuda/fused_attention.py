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
from meshc.backends.cuda.program import Launch
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value


def attention_block(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
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
    cosines, sines = step.add_angles(rope_frequencies(body.all(graph.Rope)[0], head))
    plan = attention.plan(
        shape, op.cluster, op.dataflow, step.module.capacity, op.resident, op.heads
    )
    parts = op.cluster if op.dataflow == "split_head" else 1
    name = step.add_kernel(
        step.shared("attention_block"), partial(attention.text, plan), plan.blocks, plan.cluster,
        plan.arena, THREADS,
        plan.dsmem_bytes([plan.context or step.module.capacity] * step.batch),
    )  # fmt: skip
    gain = step.add_weight("norm_of_attention", "plain", (body.name(norm, 1),), (shape.hidden,))
    of_heads = kv_heads, shape.rows
    qkv = step.add_matrix("qkv", "projections", weights, (*of_heads, shape.hidden), parts)
    outputs = (plan.clusters, parts, shape.hidden, op.heads * head // parts)
    given = [step.row("residual"), step.row("sums"), gain, qkv]
    matrix = step.add_matrix("out", "output", out, outputs, parts)
    if biases:
        given.append(step.add_weight("bias_of_qkv", "projections", biases, of_heads, parts))
    given.append(matrix)
    if out_bias:
        given.append(step.add_weight("bias_of_out", "plain", out_bias, (shape.hidden,)))
    pages = step.batch * -(-step.module.capacity // step.page)
    pool = (pages, kv_heads, step.page, head)
    given += [step.add_cache("keys", pool), step.add_cache("values", pool)]
    table = step.own("pages"), pages // step.batch
    launch = Launch(name, (*given, *table, step.row("cached"), cosines, sines))
    step.reads_first(launch, qkv, plan.first_reads())
    step.renderers[name] = partial(attention.text, plan, name)
    return launch
