"""A feed-forward layer, gated or not, with its norm and residual sum as one fused op."""

from __future__ import annotations

from typing import Any, ClassVar

from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.passes.graph.flow import (
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
from meshc.passes.graph.fusing.parts import products_of
from meshc.passes.graph.fusing.pattern import Match, Pattern

ACTIVATIONS: tuple[type[Op], ...] = (graph.Silu, graph.Gelu)
"""The functions of elements that an ``ffn_block`` computes."""


class FeedForward(Pattern):
    """Norm, inner products, activation, outer product and residual sum. Its mark is the product
    of gate and values or, where nothing is gated, the activation."""

    NAME: ClassVar[str] = "ffn_block"
    TITLE: ClassVar[str] = "a feed-forward block"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Mul, *ACTIVATIONS)

    def marked(self, flow: Flow, op: Op) -> bool:
        if isinstance(op, graph.Mul):
            return any(isinstance(flow.makers.get(v), ACTIVATIONS) for v in op.tensors())
        return not any(isinstance(r, graph.Mul) for r in flow.readers.get(op.results[0], ()))

    def match(self, flow: Flow, op: Any) -> Match:
        if not isinstance(op, graph.Mul):
            return _ffn_block(flow, [biased(flow, op.operands[0])], [op])
        act = _activation(flow, op)
        other = next((o for o in op.operands if o is not act.result), op.operands[1])
        return _ffn_block(flow, [biased(flow, act.operands[0]), biased(flow, other)], [act, op])


def _ffn_block(
    flow: Flow, sides: list[tuple[Operand, tuple[graph.Add, ...]]], pointwise: list[Op]
) -> Match:
    """A feed-forward layer whose inner products ``sides`` give what ``pointwise`` makes of them."""
    gated = pointwise[-1]
    names = ("the gate", "the gate") if len(sides) > 1 else ("the inner product",)
    made = [value for value, _ in sides]
    products, weights = products_of(flow, made, names, "gate and up", gated)
    first = products[0]
    hidden = only_dim(first)
    entry = entry_of(flow, first.operands[0], hidden, first)
    down = flow.reader(gated.results[0], graph.Matmul, "what is activated", gated)
    inner = only_dim(down)
    flow.weight(down.operands[1], down)
    biases = [op for _, bias in sides for op in bias]
    if 0 < len(biases) < len(sides):
        raise Mismatch("one of gate and up has a bias, the other none", biases[0])
    outcome, bias = unbiased(flow, down.results[0])
    outcome, factor = multiplied(flow, outcome)
    total = residual(flow, outcome, entry, down)
    vectors = [d for d in dims_of(entry.x) if d != hidden]
    if set(dims_of(gated.results[0])) != {*vectors, inner}:
        raise Mismatch(f"{gated.results[0]} has other dims than rows of {inner}", gated)
    ops = (*entry.ops, *products, *biases, *pointwise, down, *bias, *factor)
    ops += () if total is None else (total,)
    inner_names = ("gate", "up") if len(sides) > 1 else ("up",)
    operands = {**entry.operands, **dict(zip(inner_names, weights, strict=True))}
    operands |= {f"{of}_bias": op.operands[1] for of, op in zip(inner_names, biases, strict=False)}
    operands |= {"down": down.operands[1]}
    if bias:
        operands["down_bias"] = bias[0].operands[1]
    outputs = (outcome if total is None else total.result,)
    return Match(gated, ops, operands, outputs, partial=total is None)


def _activation(flow: Flow, gated: graph.Mul) -> Op:
    for operand in gated.tensors():
        op = flow.makers.get(operand)
        if isinstance(op, ACTIVATIONS):
            return op
    raise Mismatch("no activation gates this product", gated)
