"""Norm, projections, RoPE, caches, attention, output projection and residual sum as one kernel.

Dims come from the products: ``E`` is what the first one contracts, ``D`` what the scores contract,
``S`` what the softmax is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.graph.flow import (
    Entry,
    Flow,
    Mismatch,
    biased,
    dims_of,
    entry_of,
    multiplied,
    only_dim,
    residual,
    unbiased,
)
from meshc.passes.graph.fusing.parts import (
    cache_of,
    check_causal,
    check_window,
    products_of,
    same_rope,
    scores_of,
)
from meshc.passes.graph.fusing.pattern import Match, Pattern

_NAMES = ("query", "key", "value")


class AttentionBlock(Pattern):
    """An attention block with keys and values in caches. Queries and keys may each be normed, head
    by head, before RoPE."""

    NAME: ClassVar[str] = "attention_block"
    TITLE: ClassVar[str] = "an attention block"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Softmax,)

    def match(self, flow: Flow, softmax: graph.Softmax) -> Match:
        check_causal(softmax)
        check_window(softmax)
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
        q_made, k_made, head_norms = _head_norms(flow, q_rope, k_rope, lane)
        products = _projections(flow, (q_made, k_made, values.operands[1]), keys)
        first = products.ops[0]
        entry = entry_of(flow, first.operands[0], products.hidden, first)
        output = flow.reader(weighted.result, graph.Matmul, "the attended values", weighted)
        flow.weight(output.operands[1], output)
        outcome, bias = unbiased(flow, output.results[0])
        outcome, factor = multiplied(flow, outcome)
        total = residual(flow, outcome, entry, output)
        _check_dims(flow, entry, products, scores, weighted, output, lane)
        ops: tuple[Op, ...] = (*entry.ops, *products.ops, *head_norms, q_rope, k_rope, keys, values)
        ops += (scores, *scale, softmax, weighted, output, *bias, *factor)
        ops += () if total is None else (total,)
        operands = {**entry.operands, **products.operands}
        operands |= {
            f"{of}_norm": made.operands[1] for of, made in zip(_NAMES, head_norms, strict=False)
        }
        operands |= {"keys": keys.operands[0], "values": values.operands[0]}
        operands |= {"output": output.operands[1]}
        if bias:
            operands["output_bias"] = bias[0].operands[1]
        outputs = (outcome if total is None else total.result, keys.result, values.result)
        return Match(softmax, ops, operands, outputs, partial=total is None)


def _head_norms(
    flow: Flow, query: graph.Rope, key: graph.Rope, lane: str
) -> tuple[Operand, Operand, tuple[graph.RmsNorm, ...]]:
    """Query and key before they are normed over their lanes, and both norms if they are."""
    made = query.operands[0], key.operands[0]
    found = [flow.makers.get(value) for value in made if isinstance(value, Value)]
    norms = [op for op in found if isinstance(op, graph.RmsNorm)]
    if not norms:
        return *made, ()
    if len(norms) < len(made):
        raise Mismatch("one of query and key is normed, the other not", norms[0])
    for op in norms:
        gain = flow.weight(op.operands[1], op)
        if op.dim != lane or dims_of(gain) != (lane,):
            over = ", ".join(dims_of(gain))
            words = f"{op.NAME} {op.result} is over {op.dim} with a gain over {over}, not {lane}"
            raise Mismatch(words, op)
    return norms[0].operands[0], norms[1].operands[0], tuple(norms)


@dataclass(frozen=True)
class _Projections:
    """The products that give query, key and value, biases added to them, and weights and biases by
    the names of the kernel's operands."""

    hidden: str
    made: tuple[Value, ...]
    ops: tuple[Op, ...]
    operands: dict[str, Operand]


def _projections(flow: Flow, wanted: tuple[Operand, ...], at: Op) -> _Projections:
    """One product with three weights, or several of one left operand."""
    sides = [biased(flow, value) for value in wanted]
    sums = [op for _, bias in sides for op in bias]
    made = [before for before, _ in sides]
    products, weights = products_of(
        flow, made, tuple(f"the {name}" for name in _NAMES), "query, key and value", at
    )
    if sums and len(sums) < len(made):
        raise Mismatch("some of query, key and value have a bias, others none", sums[0])
    for op, weight in zip(sums, weights, strict=False):
        _whole_bias(op, weight)
    operands: dict[str, Operand] = dict(zip(_NAMES, weights, strict=True))
    operands |= {f"{of}_bias": op.operands[1] for of, op in zip(_NAMES, sums, strict=False)}
    values = tuple(value for value in made if isinstance(value, Value))
    return _Projections(only_dim(products[0]), values, (*products, *sums), operands)


def _whole_bias(op: graph.Add, weight: Value) -> None:
    """A bias is packed beside the rows of its weight, so it has a value for each of them."""
    bias = dims_of(op.operands[1])
    rows = tuple(d for d in dims_of(op.result) if d in dims_of(weight))
    if bias != rows:
        over, wanted = (", ".join(dims) for dims in (bias, rows))
        words = f"the bias {op.operands[1]} is over {over}, what it is added to over {wanted}"
        raise Mismatch(words, op)


def _check_dims(
    flow: Flow,
    entry: Entry,
    products: _Projections,
    scores: graph.Matmul,
    weighted: graph.Matmul,
    output: graph.Matmul,
    lane: str,
) -> None:
    """The dims of the products are those of attention."""
    vectors = [d for d in dims_of(entry.x) if d != products.hidden]
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


def _cache_dims(flow: Flow, cache: Operand, new: set[str], at: Op) -> None:
    """A cache has the dims of what is appended, its own in the place of the rows."""
    append = flow.maker(cache, graph.Append, "the cache", at)
    if append.rows not in new or set(dims_of(cache)) != (new - {append.rows}) | {append.dim}:
        raise Mismatch(f"the cache {cache} has other dims than its keys or values", append)
