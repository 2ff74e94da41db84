"""Parts that the patterns of several kernels share: scores, caches, RoPE, products of one value."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.graph.flow import Flow, Mismatch


def check_causal(softmax: graph.Softmax) -> None:
    """Raise :class:`Mismatch` unless each row sees tokens up to its own, and nothing else."""
    if softmax.mask != "causal":
        raise Mismatch(f"the mask of {softmax.result} is '{softmax.mask}', not 'causal'", softmax)
    if len(softmax.operands) > 1:
        raise Mismatch(f"{softmax.NAME} {softmax.result} has a sink", softmax)


def check_window(softmax: graph.Softmax) -> None:
    """Raise :class:`Mismatch` unless all layers see the same window of tokens, or none does."""
    if softmax.window and (softmax.every > 1 or softmax.but or softmax.after):
        words = f"{softmax.NAME} {softmax.result} has a window that differs from layer to layer"
        raise Mismatch(words, softmax)


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
    if append.coded:
        raise Mismatch(f"{append.operands[0]} is kept as {append.coded}", append)
    if flow.role(append.operands[0]) != "state":
        raise Mismatch(f"{append.operands[0]} is no state", append)
    return append


def same_rope(query: graph.Rope, key: graph.Rope, lane: str, rows: str) -> None:
    """Raise Mismatch unless query and key are turned alike in every layer, in interleaved pairs of
    ``lane``, by the positions of ``rows``."""
    for rope in (query, key):
        if rope.style != "interleaved":
            raise Mismatch(f"RoPE of {rope.result} has the style '{rope.style}'", rope)
        if rope.period:
            raise Mismatch(f"RoPE of {rope.result} differs from layer to layer", rope)
        if (rope.dim, rope.rows) != (lane, rows):
            raise Mismatch(f"RoPE of {rope.result} is over other dims than the scores", rope)
    if query.attributes() != key.attributes():
        raise Mismatch("RoPE of the query and the key differ", key)


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
