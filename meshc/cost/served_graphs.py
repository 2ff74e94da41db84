"""The shape of a model for serving, read off the graph that is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from meshc.cost.served_attention import GroupedAttention, LatentAttention, ServedAttention
from meshc.cost.served_models import LayerShape, ServedModel
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def served_of(module: Module) -> ServedModel:
    """What the layers of a decode ``module`` of the graph level load and compute for a token.

    Raises ``unsupported-architecture`` for what costs of serving do not know: attention but that of
    grouped queries and of latents, and layers with gates in some of their feed-forward parts alone.
    """
    lookups = [op for op in module.walk() if isinstance(op, graph.Embed)]
    weights = {p.value for p in module.function.params if p.role == "weight"}
    loops = [op for op in module.function.body.ops if isinstance(op, graph.Repeat)]
    found = None
    if lookups and loops:
        lookup, dims = lookups[0], module.dims
        hidden = tensor_type(lookup.result).dims[-1]
        found = _attention(module, hidden, loops[0].regions[0], _weights_of(loops[0], weights))
    if found is None:
        fail(
            "unsupported-architecture",
            f"'{module.name}' is no decoder of grouped queries or latents, the only ones with "
            "costs of serving",
        )
    attention, own = found
    own |= {hidden, lookup.dim}
    layers: list[LayerShape] = []
    for loop in loops:
        body = loop.regions[0]
        shape = _shape(module, body, hidden, own, _weights_of(loop, weights))
        windows = [op for op in body.walk() if isinstance(op, graph.Softmax) and op.window]
        for index in range(dims[loop.dim]):
            window = next((op.window for op in windows if _windowed(op, index)), None)
            layers.append(replace(shape, window=window))
    size = module.dtype().bytes
    learned = [dims[tensor_type(table).dims[0]] for table in lookup.operands[2:]]
    return ServedModel(
        module.name,
        dims[hidden],
        attention,
        dims[lookup.dim],
        tuple(layers),
        tied=_is_tied(module, lookup.tensors()[1]),
        element_bytes=size,
        weight_bytes=size,
        expert_weight_bytes=size,
        positions=learned[0] if learned else None,
        learned=bool(learned),
    )


def _weights_of(loop: graph.Repeat, weights: Collection[Value]) -> set[Value]:
    """What the body of ``loop`` calls the weights of a layer."""
    pairs = zip(loop.operands, loop.regions[0].args, strict=False)
    return {arg for given, arg in pairs if given in weights}


def _attention(
    module: Module, hidden: str, body: Block, weights: Collection[Value]
) -> tuple[ServedAttention, set[str]] | None:
    """The attention of ``module``, a layer of which is ``body``, and its dims; None for what has no
    costs."""
    dims, found = module.dims, module.attention
    if len(found) == 1 and not found[0].headless:
        (one,) = found
        grouped = GroupedAttention(dims[one.query], dims[one.key], dims[one.lane])
        return grouped, {one.query, one.key, one.lane}
    if len(found) != 2 or not all(one.headless for one in found):
        return None
    products = [
        (op.contract[0], {*tensor_type(right).dims} - {*op.contract})
        for op, right in _products(body, weights)
        if len(op.contract) == 1
    ]
    return _latent(dims, hidden, found[0].query, {one.lane for one in found}, products)


def _latent(
    dims: Mapping[str, int],
    hidden: str,
    heads: str,
    lanes: set[str],
    products: Sequence[tuple[str, set[str]]],
) -> tuple[LatentAttention, set[str]] | None:
    """Latent attention, by what its ``products`` contract and give of a token: latents are lanes
    that a weight makes values of, and plain lanes of queries what a weight makes latents of."""
    for latent in lanes:
        (turned,) = lanes - {latent} or {""}
        given = [others - {heads} for one, others in products if one == latent]
        plain = [one for one, others in products if others == {heads, latent} and one != hidden]
        if not turned or not given or not plain:
            continue
        asks = next((one for one, others in products if others == {heads, plain[0]}), hidden)
        query = asks if asks != hidden else ""
        (out,) = given[0]
        own = {heads, latent, plain[0], turned, out, *filter(None, [query])}
        sizes = dims[heads], dims[latent], dims[plain[0]], dims[turned], dims[out]
        return LatentAttention(*sizes, dims[query] if query else 0), own
    return None


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
