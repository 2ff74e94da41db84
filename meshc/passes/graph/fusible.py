"""Groups of ops that are one kernel each, found along definitions and uses.

Each matcher starts at an op that its kernel must have and raises :class:`Mismatch` with the reason
where the ops around are not what the kernel computes. Dims come from the products: ``E`` is what
the first one contracts, ``D`` what the scores contract, ``S`` what the softmax is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.cost.clusters import Attention, LatentAttention
from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.graph.flow import (
    Flow,
    Mismatch,
    biased,
    dims_of,
    norm_of,
    only_dim,
    residual,
    unbiased,
)

ACTIVATIONS: tuple[type[Op], ...] = (graph.Silu, graph.Gelu)
"""The functions of elements that an ``ffn_block`` computes."""


@dataclass(frozen=True)
class Group:
    """``ops`` of one kernel, what it takes and gives (in the order that :class:`graph.Fuse` says);
    ``at`` is where messages point.

    ``shape`` and ``context`` (tokens that the caches hold) are those of an attention block,
    ``latent`` instead of ``shape`` of a latent one;
    ``matrices`` are width and rows of the products of another kernel with ``batch`` vectors.
    """

    kernel: str
    at: Op
    ops: tuple[Op, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Value, ...]
    batch: int
    shape: Attention | None = None
    context: int = 0
    matrices: tuple[tuple[int, int], ...] = field(default=())
    latent: LatentAttention | None = None


def attention_block(flow: Flow, softmax: graph.Softmax) -> Group:
    """Norm, projections, RoPE, caches, attention, output projection and residual sum."""
    if softmax.mask != "causal":
        raise Mismatch(f"the mask of {softmax.result} is '{softmax.mask}', not 'causal'", softmax)
    scaled, scale = scores_of(flow, softmax)
    scores = flow.maker(scaled, graph.Matmul, "the scores", softmax)
    lane = only_dim(scores)
    if softmax.dim == lane or len(scores.operands) != 2:
        raise Mismatch(f"{scores.NAME} {scores.results[0]} makes no scores", scores)
    q_rope = flow.maker(scores.operands[0], graph.Rope, "the query", scores)
    keys = cache_of(flow, scores.operands[1], softmax, scores)
    k_rope = flow.maker(keys.operands[1], graph.Rope, "the key", keys)
    same_rope(q_rope, k_rope, lane, softmax.rows)
    weighted = flow.reader(softmax.result, graph.Matmul, "the softmax", softmax)
    if weighted.contract != (softmax.dim,) or len(weighted.operands) != 2:
        raise Mismatch(f"{weighted.NAME} {weighted.results[0]} weighs no values", weighted)
    values = cache_of(flow, weighted.operands[1], softmax, weighted)
    products = _projections(
        flow, (q_rope.operands[0], k_rope.operands[0], values.operands[1]), keys
    )
    first = products.ops[0]
    norm = norm_of(flow, first.operands[0], products.hidden, first)
    output = flow.reader(weighted.result, graph.Matmul, "the attended values", weighted)
    flow.weight(output.operands[1], output)
    outcome, bias = unbiased(flow, output.results[0])
    total = residual(flow, outcome, norm.operands[0], output)
    shape = _shape(flow, norm, products, scores, weighted, output, lane)
    ops: tuple[Op, ...] = (norm, *products.ops, q_rope, k_rope, keys, values, scores, *scale)
    ops += (softmax, weighted, output, *bias, total)
    inputs = (*norm.operands, *products.weights, *products.biases)
    inputs += (keys.operands[0], values.operands[0], output.operands[1])
    inputs += tuple(op.operands[1] for op in bias)
    outputs = (total.result, keys.result, values.result)
    context = flow.extent([softmax.dim])
    return Group("attention_block", softmax, ops, inputs, outputs, shape.batch, shape, context)


def scores_of(flow: Flow, softmax: graph.Softmax) -> tuple[Operand, tuple[Op, ...]]:
    """What the softmax reads before it is scaled, and the scale if there is one."""
    scale = flow.makers.get(softmax.tensors()[0])
    if isinstance(scale, graph.Scale):
        return scale.operands[0], (scale,)
    return softmax.operands[0], ()


def cache_of(flow: Flow, value: Operand, softmax: graph.Softmax, at: Op) -> graph.Append:
    """The append that makes the cached keys or values."""
    append = flow.maker(value, graph.Append, "the cache", at)
    if (append.dim, append.rows) != (softmax.dim, softmax.rows):
        raise Mismatch(f"{append.NAME} {append.result} and the softmax differ in dims", append)
    if flow.role(append.operands[0]) != "state":
        raise Mismatch(f"{append.operands[0]} is no state", append)
    return append


def same_rope(query: graph.Rope, key: graph.Rope, lane: str, rows: str) -> None:
    for rope in (query, key):
        if rope.style != "interleaved":
            raise Mismatch(f"RoPE of {rope.result} has the style '{rope.style}'", rope)
        if (rope.dim, rope.rows) != (lane, rows):
            raise Mismatch(f"RoPE of {rope.result} is over other dims than the scores", rope)
    if query.attributes() != key.attributes():
        raise Mismatch("RoPE of the query and the key differ", key)


@dataclass(frozen=True)
class _Projections:
    """The products that give query, key and value, and biases added to them."""

    hidden: str
    made: tuple[Value, ...]
    ops: tuple[Op, ...]
    weights: tuple[Operand, ...]
    biases: tuple[Operand, ...]


def _projections(flow: Flow, wanted: tuple[Operand, ...], at: Op) -> _Projections:
    """One product with three weights, or several of one left operand."""
    sides = [biased(flow, value) for value in wanted]
    sums = [op for _, bias in sides for op in bias]
    made = [before for before, _ in sides]
    products, weights = products_of(
        flow, made, ("the query", "the key", "the value"), "query, key and value", at
    )
    if sums and len(sums) < len(made):
        raise Mismatch("some of query, key and value have a bias, others none", sums[0])
    for op, weight in zip(sums, weights, strict=False):
        _whole_bias(op, weight)
    biases = tuple(op.operands[1] for op in sums)
    values = tuple(value for value in made if isinstance(value, Value))
    return _Projections(only_dim(products[0]), values, (*products, *sums), tuple(weights), biases)


def _whole_bias(op: graph.Add, weight: Value) -> None:
    """A bias is packed beside the rows of its weight, so it has a value for each of them."""
    bias = dims_of(op.operands[1])
    rows = tuple(d for d in dims_of(op.result) if d in dims_of(weight))
    if bias != rows:
        over, wanted = (", ".join(dims) for dims in (bias, rows))
        words = f"the bias {op.operands[1]} is over {over}, what it is added to over {wanted}"
        raise Mismatch(words, op)


def products_of(
    flow: Flow, made: Sequence[Operand], names: Sequence[str], together: str, at: Op
) -> tuple[list[graph.Matmul], list[Value]]:
    """The products of one value that give all of ``made`` and nothing else, and the weight of each
    of these, called ``names`` and ``together`` in messages."""
    products: list[graph.Matmul] = []
    weights: list[Value] = []
    for value, what in zip(made, names, strict=True):
        product = flow.maker(value, graph.Matmul, what, at)
        place = 1 + [r is value for r in product.results].index(True)
        weights.append(flow.weight(product.operands[place], product))
        if product not in products:
            products.append(product)
    first = products[0]
    for product in products:
        if product.operands[0] is not first.operands[0] or product.contract != first.contract:
            raise Mismatch(f"{together} are products of different values", product)
        extra = [r for r in product.results if r not in made]
        if extra:
            raise Mismatch(f"{product.NAME} also gives {extra[0]}", product)
    return products, weights


def _shape(
    flow: Flow,
    norm: graph.RmsNorm,
    products: _Projections,
    scores: graph.Matmul,
    weighted: graph.Matmul,
    output: graph.Matmul,
    lane: str,
) -> Attention:
    """Extents of the block from the dims of its products."""
    vectors = [d for d in dims_of(norm.operands[0]) if d != products.hidden]
    query, key, value = ([d for d in dims_of(v) if d not in vectors] for v in products.made)
    if lane not in query or key != value or lane not in key:
        raise Mismatch("query, key and value have other lanes than the scores", scores)
    heads = [d for d in query if d != lane]
    kv_heads = [d for d in key if d != lane]
    group = (heads[0], kv_heads[0]) if heads != kv_heads and heads and kv_heads else ()
    if scores.group != group or weighted.group != group:
        raise Mismatch("scores and weighted values group heads in different ways", scores)
    for cache in (scores.operands[1], weighted.operands[1]):
        _cache_dims(flow, cache, {*vectors, *key}, scores)
    if set(output.contract) != {*heads, lane}:
        contracted = ", ".join(output.contract)
        raise Mismatch(f"the output projection contracts {contracted}", output)
    return Attention(
        flow.extent([products.hidden]),
        flow.extent(heads),
        flow.extent(kv_heads),
        flow.extent([lane]),
        flow.extent(vectors),
    )


def _cache_dims(flow: Flow, cache: Operand, new: set[str], at: Op) -> None:
    """A cache has the dims of what is appended, its own in the place of the rows."""
    append = flow.maker(cache, graph.Append, "the cache", at)
    if append.rows not in new or set(dims_of(cache)) != (new - {append.rows}) | {append.dim}:
        raise Mismatch(f"the cache {cache} has other dims than its keys or values", append)


def gated_ffn_block(flow: Flow, gated: graph.Mul) -> Group:
    """Norm, gate and up products, gated activation, down product and residual sum."""
    act = _activation(flow, gated)
    other = next((o for o in gated.operands if o is not act.result), gated.operands[1])
    return _ffn_block(flow, [biased(flow, act.operands[0]), biased(flow, other)], [act, gated])


def plain_ffn_block(flow: Flow, act: Op) -> Group:
    """Norm, one inner product, activation, outer product and residual sum."""
    return _ffn_block(flow, [biased(flow, act.operands[0])], [act])


def _ffn_block(
    flow: Flow, sides: list[tuple[Operand, tuple[graph.Add, ...]]], pointwise: list[Op]
) -> Group:
    """A feed-forward layer whose inner products ``sides`` give what ``pointwise`` makes of them."""
    gated = pointwise[-1]
    names = ("the gate", "the gate") if len(sides) > 1 else ("the inner product",)
    made = [value for value, _ in sides]
    products, weights = products_of(flow, made, names, "gate and up", gated)
    first = products[0]
    hidden = only_dim(first)
    norm = norm_of(flow, first.operands[0], hidden, first)
    down = flow.reader(gated.results[0], graph.Matmul, "what is activated", gated)
    inner = only_dim(down)
    flow.weight(down.operands[1], down)
    biases = [op for _, bias in sides for op in bias]
    if 0 < len(biases) < len(sides):
        raise Mismatch("one of gate and up has a bias, the other none", biases[0])
    outcome, bias = unbiased(flow, down.results[0])
    total = residual(flow, outcome, norm.operands[0], down)
    vectors = [d for d in dims_of(norm.operands[0]) if d != hidden]
    if set(dims_of(gated.results[0])) != {*vectors, inner}:
        raise Mismatch(f"{gated.results[0]} has other dims than rows of {inner}", gated)
    batch = flow.extent(vectors)
    width, features = flow.extent([hidden]), flow.extent([inner])
    ops = (norm, *products, *biases, *pointwise, down, *bias, total)
    inputs = (*norm.operands, *weights, *(op.operands[1] for op in biases))
    inputs += (down.operands[1], *(op.operands[1] for op in bias))
    matrices = ((width, len(sides) * features), (features, width))
    return Group("ffn_block", gated, ops, inputs, (total.result,), batch, matrices=matrices)


def _activation(flow: Flow, gated: graph.Mul) -> Op:
    for operand in gated.tensors():
        op = flow.makers.get(operand)
        if isinstance(op, ACTIVATIONS):
            return op
    raise Mismatch("no activation gates this product", gated)


def head(flow: Flow, product: graph.Matmul) -> Group:
    """The last norm and the product that gives the logits."""
    if len(product.operands) != 2:
        raise Mismatch("one product gives the logits", product)
    hidden = only_dim(product)
    norm = norm_of(flow, product.operands[0], hidden, product)
    weight = flow.weight(product.operands[1], product)
    batch = flow.extent(d for d in dims_of(norm.operands[0]) if d != hidden)
    rows = flow.extent(d for d in dims_of(weight) if d != hidden)
    width = flow.extent([hidden])
    inputs = (*norm.operands, weight)
    matrices = ((width, rows),)
    ops = (norm, product)
    return Group("head", product, ops, inputs, (product.result,), batch, matrices=matrices)


def embed(flow: Flow, op: graph.Embed) -> Group:
    """A look-up of token ids in a table."""
    table = flow.weight(op.operands[1], op)
    width = flow.extent(d for d in dims_of(table) if d != op.dim)
    batch = flow.extent(dims_of(op.operands[0]))
    inputs = tuple(op.operands)
    return Group("embed", op, (op,), inputs, (op.result,), batch, matrices=((width, batch),))
