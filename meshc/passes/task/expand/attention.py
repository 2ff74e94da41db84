"""Attention over cached tokens, from the products of queries with a cache to the values that their
softmax weighs, which tasks compute run by run (WaferLLM's merged softmax, flash decoding)."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.core import Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.ops import graph
from meshc.passes.task.expand.attending_family import per_request
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.products import Products
from meshc.passes.task.expand.split_head import SplitHead
from meshc.passes.task.expand.split_token import SplitToken
from meshc.passes.task.expand.token_runs import Runs
from meshc.passes.task.expand.values import Known, Scores


@dataclass
class Attending:
    """Follows scores to their softmax, and writes the families that attend: one whose tasks share
    the tokens of a key head, or two whose tasks share its lanes."""

    demand: Demand
    products: Products
    runs: Runs

    # --- on the way to the softmax

    def scores(self, op: graph.Matmul, left: Known, right: Known) -> Known:
        """Products of queries with a cache ``[B, tokens, heads, lanes]``, or without heads."""
        keys, dims = right.grown, right.kind.dims
        if keys is None or op.contract != dims[-1:] or len(per_request(right)) > 3:
            refuse(op, f"attention over a cache of dims {', '.join(dims)}")
        self.products.store(left)
        self.products.store(keys)
        scores = Scores([(left, right)])
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def sum(self, op: graph.Add, first: Known, second: Known) -> Known:
        """Scores over several caches of the same tokens (latent attention)."""
        one, other = first.scores, second.scores
        if one is None or other is None or one.steps or other.steps:
            refuse(op, "scores to which something else is added")
        scores = Scores([*one.products, *other.products])
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def step(self, op: Op, known: Known) -> Known:
        """A change of scores, element by element."""
        scores = known.scores
        assert scores is not None
        if isinstance(op, graph.Scale):
            factor = op.factor
            scores.steps.append(lambda t, v: t.compute("scale", v, v, factor=factor))
        elif isinstance(op, Function):
            kernel, given = op.NAME.partition(".")[2], op.attributes()
            scores.steps.append(lambda t, v: t.compute(kernel, v, v, **given))
        else:
            refuse(op, "this change of attention's scores")
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def softmax(self, op: graph.Softmax, known: Known, sink: Known | None) -> Known:
        """The softmax of scores, which is never computed as such."""
        scores = known.scores
        if scores is None or scores.softmax is not None or op.mask != "causal":
            refuse(op, "a softmax that is not that of causal attention")
        if sink is not None and sink.weight is None:
            refuse(op, "a sink that is computed")
        scores.softmax, scores.sink = op, sink
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def attend(self, op: graph.Matmul, left: Known, right: Known) -> Known:
        """Values weighted by the softmax of scores."""
        scores = left.scores
        if scores is None or not isinstance(scores.softmax, graph.Softmax) or right.grown is None:
            refuse(op, "a product with a cache that is not that of attention")
        self.products.store(right.grown)
        self.runs.fit([*(c for _, c in scores.products), right])
        if right.coded and self.runs.lanes > 1:
            refuse(op, f"lanes of heads that are shared, of caches of {right.coded}")
        dataflow = SplitHead if self.runs.lanes > 1 else SplitToken
        return dataflow(self.runs, self.demand, op, scores, right).made()
