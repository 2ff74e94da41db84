"""The shape of a model for serving, read off the graph that is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from meshc.cost.served_models import LayerShape, ServedModel
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def served_of(module: Module) -> ServedModel:
    """What the layers of a decode ``module`` of the graph level load and compute for a token.

    Raises ``unsupported-architecture`` for what costs of serving do not know: attention but that of
    grouped queries, and layers with gates in some of their feed-forward parts alone.
    """
    lookups = [op for op in module.walk() if isinstance(op, graph.Embed)]
    heads = [found for found in module.attention if not found.headless]
    if not lookups or len(module.attention) != 1 or not heads:
        fail(
            "unsupported-architecture",
            f"'{module.name}' is no decoder of grouped queries, the only ones with costs of "
            "serving",
        )
    (lookup, *_), (attention, *_) = lookups, heads
    dims, table = module.dims, lookup.tensors()[1]
    hidden = tensor_type(lookup.result).dims[-1]
    own = {hidden, attention.query, attention.key, attention.lane, lookup.dim}
    weights = {p.value for p in module.function.params if p.role == "weight"}
    layers: list[LayerShape] = []
    for loop in (op for op in module.function.body.ops if isinstance(op, graph.Repeat)):
        body = loop.regions[0]
        known = {
            arg for given, arg in zip(loop.operands, body.args, strict=False) if given in weights
        }
        shape = _shape(module, body, hidden, own, known)
        windows = [op for op in body.walk() if isinstance(op, graph.Softmax) and op.window]
        for index in range(dims[loop.dim]):
            window = next((op.window for op in windows if _windowed(op, index)), None)
            layers.append(replace(shape, window=window))
    return ServedModel(
        module.name,
        dims[hidden],
        dims[attention.query],
        dims[attention.key],
        dims[attention.lane],
        dims[lookup.dim],
        tuple(layers),
        _is_tied(module, table),
        *[module.dtype().bytes] * 3,
    )


def _shape(
    module: Module, body: Block, hidden: str, own: set[str], weights: Collection[Value]
) -> LayerShape:
    """A layer without its window."""
    routed = [op for op in body.walk() if isinstance(op, graph.TopK)]
    expert_dims = {op.dim for op in routed}
    count = sum(module.dims[op.dim] for op in routed)
    top = sum(op.count for op in routed)
    width = dense = 0
    into = Counter(_into(body, hidden, own | expert_dims, weights))
    inward = set()
    for dims, features in _out_of(body, hidden, own | expert_dims, weights):
        inward.add(into[features])
        if expert_dims & dims:
            width += module.dims[features]
        else:
            dense += module.dims[features]
    if len(inward) > 1 or not inward <= {1, 2}:
        fail(
            "unsupported-architecture",
            f"feed-forward parts of '{module.name}' differ in their gates, and costs of serving "
            "know layers that are alike",
        )
    return LayerShape(count, top, width, dense, None, 1 not in inward)


def _into(body: Block, hidden: str, beside: set[str], weights: Collection[Value]) -> Iterator[str]:
    """The features of each product of the hidden values into features."""
    for op, right in _products(body, weights):
        if op.contract == (hidden,):
            yield from {*tensor_type(right).dims} - beside


def _out_of(
    body: Block, hidden: str, beside: set[str], weights: Collection[Value]
) -> Iterator[tuple[set[str], str]]:
    """The dims of the weight and the features of each product of features into hidden values."""
    for op, right in _products(body, weights):
        dims = {*tensor_type(right).dims}
        if hidden in dims and hidden not in op.contract:
            for features in {*op.contract} - beside:
                yield dims, features


def _products(body: Block, weights: Collection[Value]) -> Iterator[tuple[graph.Matmul, Value]]:
    for op in body.walk():
        if isinstance(op, graph.Matmul):
            for right in op.tensors()[1:]:
                if right in weights:
                    yield op, right


def _windowed(op: graph.Softmax, layer: int) -> bool:
    """Whether the window of ``op`` holds in a layer."""
    if op.but:
        return (layer + 1) % op.but != 0
    return layer >= op.after and layer % op.every == 0


def _is_tied(module: Module, table: Value) -> bool:
    """Whether the table of embeddings is read by anything but the look-up."""
    readers: list[Op] = [op for op in module.walk() if table in op.operands]
    return any(not isinstance(op, graph.Embed) for op in readers)
