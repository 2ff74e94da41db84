"""What of a fused decode graph multiplies rows, as launches: feed-forward layers, logits, and the
table of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from meshc.analysis.blocks import THREADS
from meshc.backends.cuda.fused_body import Body, check_dims, value_of
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels import rows
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.program import Buffer, Launch
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def feed_forward(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> list[Launch]:
    """Norm, inner products and activation; outer product and residual sum. Raises ``cuda-shape``
    for what does not fit."""
    body = Body(op, outer)
    norm = body.one(graph.RmsNorm)
    outer_product = body.all(graph.Matmul)[-1]
    down = op.operands.index(body.operand(outer_product, 1))
    inner = (norm.dim, outer_product.contract[0])
    sides = 2 if body.all(graph.Mul) else 1
    gates, inner_bias = body.inputs(2, 2 + sides), body.inputs(2 + sides, down)
    for place in range(2, 2 + sides):
        check_dims(op, place, inner, {2})
    check_dims(op, down, inner[::-1], {2})
    outer_bias = body.inputs(down + 1)
    hidden = step.module.dims[norm.dim]
    features = step.module.dims[outer_product.contract[0]]
    output, pack = ("gated", "gated") if sides > 1 else ("activated", "transposed")
    first = rows.RowsProduct(
        step.columns, hidden, sides * features, step.dtype, "normed", output, norm.eps,
        _activation(body), bool(inner_bias),
    )  # fmt: skip
    second = rows.RowsProduct(
        step.columns, features, hidden, step.dtype, "plain", "residual", bias=bool(outer_bias)
    )
    step.shared_products += [first, second]
    inner_name = "gate_up" if sides > 1 else "up"
    gain = step.add_weight("norm_of_ffn", "plain", (body.name(norm, 1),), (hidden,))
    given = [gain, step.add_matrix(inner_name, pack, gates, (sides * features, hidden))]
    if inner_bias:
        bias = step.add_weight(f"bias_of_{inner_name}", pack, inner_bias, (sides * features,))
        given.append(bias)
    down_name = (body.name(outer_product, 1),)
    outward = [step.add_matrix("down", "transposed", down_name, (hidden, features))]
    if outer_bias:
        outward.append(step.add_weight("bias_of_down", "plain", outer_bias, (hidden,)))
    made = step.own(step.of_stage("features"))
    step.buffers[made] = Buffer("f32", (step.columns, features), "scratch")
    return [
        _rows_launch(
            step, step.own("ffn_inner"), first, op, (step.own("sums"), *given, made), given[1]
        ),
        _rows_launch(
            step, step.own("ffn_outer"), second, op,
            (made, *outward, step.own("sums"), step.own("residual")), outward[0],
        ),
    ]  # fmt: skip


def _activation(body: Body) -> str:
    """The activation of a feed-forward layer by its name in a template."""
    if body.all(graph.Silu):
        return "silu"
    return "gelu_tanh" if body.one(graph.Gelu).form == "tanh" else "gelu"


def head(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
    """The last norm and the logits. Raises ``cuda-shape`` for what does not fit."""
    body = Body(op, outer)
    norm, product = body.one(graph.RmsNorm), body.one(graph.Matmul)
    matrix = value_of(product, 1)
    (vocabulary,) = (d for d in tensor_type(matrix).dims if d not in product.contract)
    hidden, words = step.module.dims[norm.dim], step.module.dims[vocabulary]
    shape = rows.RowsProduct(step.batch, hidden, words, step.dtype, "normed", "stored", norm.eps)
    name = body.name(product, 1)
    gain = step.add_weight("norm_of_head", "plain", (body.name(norm, 1),), (hidden,))
    stored = _table(step, name, (words, hidden), tensor_type(matrix).dims[0] == vocabulary)
    step.buffers[step.own("logits")] = Buffer("f32", (step.batch, words), "output")
    arguments = (step.row("residual"), gain, stored, step.own("logits"))
    return _rows_launch(step, step.shared("head"), shape, op, arguments, stored)


def embed(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
    """The look-up of tokens, which also starts the residual stream."""
    body = Body(op, outer)
    lookup = body.one(graph.Embed)
    kind = tensor_type(value_of(lookup, 1))
    words = step.module.dims[lookup.dim]
    (hidden,) = (step.module.dims[d] for d in kind.dims if d != lookup.dim)
    text = partial(rows.embed_text, hidden=hidden, vocabulary=words, dtype=step.dtype)
    name = step.add_kernel(step.own("embed"), text, step.columns, 1, Arena(), 256)
    table = _table(step, body.name(lookup, 1), (words, hidden), kind.dims[0] == lookup.dim)
    stream = (step.own("residual"), step.own("sums"))
    for part in stream:
        step.buffers[part] = Buffer("f32", (step.columns, hidden), "scratch")
    return Launch(name, (step.own("tokens"), table, *stream))


def _table(step: Step, source: str, shape: tuple[int, int], by_rows: bool) -> str:
    """The name of a table of the vocabulary, which is given by its rows or turned around; one that
    is tied to another is kept once."""
    pack = "plain" if by_rows else "transposed"
    for name, weight in step.weights.items():
        if weight.sources == (source,) and weight.pack == pack:
            return name
    name = "logits_of" if "embedding" in step.weights else "embedding"
    return step.add_matrix(name, pack, (source,), shape)


def _rows_launch(
    step: Step,
    kernel: str,
    shape: rows.RowsProduct,
    op: graph.Fuse,
    arguments: tuple[str, ...],
    matrix: str,
) -> Launch:
    """The product of ``shape`` with ``matrix``, one of the ``arguments``."""
    try:
        plan = rows.plan(shape, step.cores)
    except DoesNotFit as reason:
        fail("cuda-shape", f"no kernel for this {op.kernel}: {reason}", op.span)
    name = step.add_kernel(
        kernel, partial(rows.text, plan), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip
    launch = Launch(name, arguments)
    step.reads_first(launch, matrix, plan.first_reads())
    step.renderers[name] = partial(rows.text, plan, name)
    return launch
