"""Runs graph-level modules on whole arrays: one small function for each op.

Dims are matched by name. A dim whose size is known at run time only (the prompt rows ``L`` of a
prefill) has as many rows as the arrays that are passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from meshc.interp import draws, formulas, gating
from meshc.interp.inputs import Scalars, bound_inputs, checked_scalars, rounds_of
from meshc.interp.named import Array, Dims, aligned, contracted, ungrouped
from meshc.interp.nearness import chosen
from meshc.interp.ranks import ALONE, Place
from meshc.interp.rounding import coded_rows
from meshc.ir.batch import BATCH, OWNER, POSITION
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import batches, graph, ranks
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


@dataclass
class Scope:
    """The run-time scalars, which rank runs, what each value holds so far, and the layer of the
    loop that runs."""

    extents: Mapping[str, int]
    scalars: Scalars
    values: dict[Value, Array] = field(default_factory=dict)
    layer: int = 0
    place: Place = ALONE
    token_parts: Mapping[str, int] = field(default_factory=dict)

    def batch_dim(self, dims: Dims) -> str:
        """The one of ``dims`` that counts requests or tokens of the batch, or some of these; the
        dim of all where there is none."""
        return next((d for d in dims if d in self.token_parts), BATCH)

    def positions_of(self, dims: Dims) -> Array:
        """The positions of those that :meth:`batch_dim` counts."""
        dim = self.batch_dim(dims)
        if dim not in self.token_parts or not self.position.ndim:
            return self.position
        return self.position[self.tokens_of(dim)]

    def tokens_of(self, dim: str) -> slice:
        """The tokens of the batch that ``dim`` counts."""
        first = self.token_parts.get(dim, 0)
        return slice(first, first + self.extents[dim])

    @property
    def position(self) -> Array:
        """Tokens that are cached already: one number, or ``[B]`` of each request its own."""
        return np.asarray(self.scalars.get(POSITION, 0))

    def of(self, operand: Operand) -> Array:
        """What ``operand`` holds."""
        return self.values[cast(Value, operand)]


Meaning = Callable[[Scope, Any], list[Array]]
OpType = TypeVar("OpType", bound=Op)

MEANINGS: dict[type[Op], Meaning] = {}


def run_graph(
    module: Module,
    inputs: Mapping[str, Array],
    scalars: Scalars | None = None,
    dtype: DTypeLike = np.float64,
    place: Place = ALONE,
) -> list[Array]:
    """The results of the module's function, in order.

    ``inputs`` gives an array for each parameter by name (a state that is left out starts as
    zeros); all floating arithmetic is done in ``dtype``. A graph of several ranks is run by
    :func:`meshc.interp.together.run_ranks`, which gives each its ``place``. Raises
    ``interp-input``, ``interp-ranks``, ``interp-scalar``, ``interp-shape``.
    """
    extents, arrays = bound_inputs(module, inputs, np.dtype(dtype))
    scope = Scope(extents, checked_scalars(module, scalars or {}), place=place)
    scope.token_parts = {part.dim: part.first for part in module.token_parts}
    scope.values.update(arrays)
    with np.errstate(all="ignore"):
        return run_block(module.function.body, scope)


def run_block(block: Block, scope: Scope) -> list[Array]:
    """Execute the ops of ``block``; what its ``yield`` or ``return`` gives."""
    for op in block.ops:
        if isinstance(op, (graph.Return, graph.Yield)):
            return [scope.of(o) for o in op.operands]
        if (compute := _meaning_of(op)) is None:
            op.reject("has no meaning at graph level")
        try:
            results = compute(scope, op)
        except ValueError as error:
            fail("interp-shape", f"{op.NAME}: {error}", op.span)
        scope.values.update(zip(op.results, results, strict=True))
    return []


def meaning(cls: type[OpType]) -> Callable[[Callable[[Scope, OpType], list[Array]]], Meaning]:
    """Decorator: the function is what ops of ``cls`` do."""

    def add(function: Callable[[Scope, OpType], list[Array]]) -> Meaning:
        MEANINGS[cls] = function
        return function

    return add


def _dims(operand: Operand) -> Dims:
    return tensor_type(operand).dims


def _spread(scope: Scope, op: Op) -> tuple[Array, Array]:
    """Both operands, the second one repeated over dims it lacks."""
    left, right = op.operands
    return scope.of(left), aligned(scope.of(right), _dims(right), _dims(left))


@meaning(graph.Matmul)
def _matmul(scope: Scope, op: graph.Matmul) -> list[Array]:
    left, left_dims = scope.of(op.operands[0]), _dims(op.operands[0])
    heads = left.shape[left_dims.index(op.group[0])] if op.group else 0
    results = []
    for operand, value in zip(op.operands[1:], op.results, strict=True):
        right, right_dims = ungrouped(scope.of(operand), _dims(operand), op.group, heads)
        results.append(contracted(left, left_dims, right, right_dims, op.contract, _dims(value)))
    return results


@meaning(graph.Transpose)
def _transpose(scope: Scope, op: graph.Transpose) -> list[Array]:
    return [aligned(scope.of(op.operands[0]), _dims(op.operands[0]), op.dims)]


@meaning(graph.Add)
def _add(scope: Scope, op: graph.Add) -> list[Array]:
    left, right = _spread(scope, op)
    return [left + right]


@meaning(graph.Mul)
def _mul(scope: Scope, op: graph.Mul) -> list[Array]:
    left, right = _spread(scope, op)
    return [left * right]


@meaning(graph.Scale)
def _scale(scope: Scope, op: graph.Scale) -> list[Array]:
    return [scope.of(op.operands[0]) * op.factor]


def _function(scope: Scope, op: Function) -> list[Array]:
    formula = formulas.formula_of(op.NAME.removeprefix("graph."))
    return [formula(scope.of(op.operands[0]), **op.attributes())]


def _meaning_of(op: Op) -> Meaning | None:
    of_level = isinstance(op, Function) and op.NAME.startswith("graph.")
    return _function if of_level else MEANINGS.get(type(op))


@meaning(graph.RmsNorm)
def _rms_norm(scope: Scope, op: graph.RmsNorm) -> list[Array]:
    x, gain = _spread(scope, op)
    axes = tuple(_dims(op.operands[0]).index(dim) for dim in (op.dim, *op.also))
    mean = np.mean(x * x, axes, keepdims=True)
    return [x / np.sqrt(mean + op.eps) * gain]


@meaning(graph.Centre)
def _centre(scope: Scope, op: graph.Centre) -> list[Array]:
    x = scope.of(op.operands[0])
    return [x - np.mean(x, _dims(op.operands[0]).index(op.dim), keepdims=True)]


@meaning(graph.Rope)
def _rope(scope: Scope, op: graph.Rope) -> list[Array]:
    dims = _dims(op.operands[0])
    x = np.moveaxis(scope.of(op.operands[0]), dims.index(op.dim), -1)
    rest = tuple(d for d in dims if d != op.dim)
    angle = np.multiply.outer(
        _row_positions(scope, op, x, rest), formulas.frequencies(op, x.shape[-1], scope.layer)
    )
    by_row = _by_row(scope, op, angle, (op.rows, op.dim), (*rest, op.dim))
    turned = x.copy()
    lanes = op.lanes(x.shape[-1])
    turned[..., :lanes] = _turned_lanes(x[..., :lanes], by_row[..., : lanes // 2], op.style)
    return [np.moveaxis(turned, -1, dims.index(op.dim))]


def _row_positions(scope: Scope, op: graph.Rope | graph.Softmax, x: Array, dims: Dims) -> Array:
    """The position of each row of ``x``, ``[rows]`` or ``[B, rows]``."""
    rows = x.shape[dims.index(op.rows)] if op.rows in dims else 1
    return scope.positions_of(dims)[..., None] + np.arange(rows)


def _by_row(scope: Scope, op: Op, array: Array, dims: Dims, target: Dims) -> Array:
    """``array`` over the requests, if each has a position of its own, and ``dims``, aligned to
    ``target``; a single row may have no dim there."""
    batch = scope.batch_dim(target)
    dims = (batch, *dims) if scope.position.ndim else dims
    if scope.position.ndim and batch not in target:
        op.reject(f"has no dim {BATCH}, but each request its own position")
    for dim in [d for d in dims if d not in target]:
        array = array.take(0, dims.index(dim))
        dims = tuple(d for d in dims if d != dim)
    return aligned(array, dims, target)


def _turned_lanes(x: Array, angle: Array, style: str) -> Array:
    """``x[.., D]`` with its D/2 pairs rotated; ``style`` says which lanes make a pair."""
    half = x.shape[-1] // 2
    if style == "half":
        return np.concatenate(formulas.turned(x[..., :half], x[..., half:], angle), -1)
    pairs = formulas.turned(x[..., 0::2], x[..., 1::2], angle)
    return np.stack(pairs, -1).reshape(x.shape)


@meaning(graph.Softmax)
def _softmax(scope: Scope, op: graph.Softmax) -> list[Array]:
    x, dims = scope.of(op.operands[0]), _dims(op.operands[0])
    axis = dims.index(op.dim)
    if op.mask == "causal":
        x = np.where(_visible(scope, op, x, dims), x, -np.inf)
    if len(op.operands) == 1:
        weights = np.exp(x - x.max(axis, keepdims=True))
        return [weights / weights.sum(axis, keepdims=True)]
    rest = tuple(d for d in dims if d != op.dim)
    sink = np.expand_dims(aligned(scope.of(op.operands[1]), _dims(op.operands[1]), rest), axis)
    top = np.maximum(x.max(axis, keepdims=True), sink)
    weights = np.exp(x - top)
    return [weights / (weights.sum(axis, keepdims=True) + np.exp(sink - top))]


@meaning(graph.TopK)
def _top_k(scope: Scope, op: graph.TopK) -> list[Array]:
    axis = _dims(op.operands[0]).index(op.dim)
    scores = np.moveaxis(scope.of(op.operands[0]), axis, -1)
    bias = scope.of(op.operands[1]) if len(op.operands) > 1 else None
    return [np.moveaxis(gating.top_k(scores, bias, op.attributes()), -1, axis)]


@meaning(graph.ArgMax)
def _arg_max(scope: Scope, op: graph.ArgMax) -> list[Array]:
    x, axis = scope.of(op.operands[0]), _dims(op.operands[0]).index(op.dim)
    chosen(np.moveaxis(x, axis, -1), 1)
    return [np.where(np.isnan(x).any(axis), np.inf, x.argmax(axis))]


@meaning(graph.Draw)
def _draw(scope: Scope, op: graph.Draw) -> list[Array]:
    dims = _dims(op.operands[0])
    kept = tuple(d for d in dims if d != op.dim)
    scores = np.moveaxis(scope.of(op.operands[0]), dims.index(op.dim), -1).astype(np.float32)
    given = []
    for operand in op.operands[1:]:
        *own, last = _dims(operand)
        whole = aligned(scope.of(operand), (*own, last), (*kept, last))
        given.append(np.broadcast_to(whole, (*scores.shape[:-1], whole.shape[-1])))
    settings, stream = given
    top = scores.max(-1)
    first = np.where(np.isnan(top), np.inf, scores.argmax(-1))
    weights = draws.likelihoods(scores, top, settings)
    return [draws.drawn(first, scores, weights, settings, stream)]


def _visible(scope: Scope, op: graph.Softmax, x: Array, dims: Dims) -> Array:
    """True where row ``l`` sees element ``s``: ``s <= pos + l``, within the window if there is one.
    Those of a request that is absent
    see all, so that their softmax stays a number."""
    key = np.arange(x.shape[dims.index(op.dim)])
    position = _row_positions(scope, op, x, dims)[..., None]
    sees = key <= position
    chosen = scope.layer >= op.after and scope.layer % op.every == 0
    if op.window and ((scope.layer + 1) % op.but != 0 if op.but else chosen):
        sees &= key > position - op.window
    sees |= (scope.positions_of(dims) < 0)[..., None, None]
    return _by_row(scope, op, sees, (op.rows, op.dim), dims)


@meaning(graph.Append)
def _append(scope: Scope, op: graph.Append) -> list[Array]:
    cache, new = op.operands
    dims = _dims(cache)
    axis = dims.index(op.dim)
    fresh_dims = tuple(op.dim if d == op.rows else d for d in _dims(new))
    fresh = aligned(scope.of(new), fresh_dims, dims)
    fresh = coded_rows(fresh) if op.coded else fresh
    result = scope.of(cache).copy()
    for request, first in enumerate(np.atleast_1d(scope.position)):
        if first < 0:
            continue
        end = first + fresh.shape[axis]
        if end > result.shape[axis]:
            fail(
                "interp-shape",
                f"{op.NAME}: rows {first} to {end - 1} do not fit {op.dim} = {result.shape[axis]}",
                op.span,
            )
        own = _of_request(scope, op, dims, request)
        place = tuple(slice(first, end) if d == op.dim else own.get(d, slice(None)) for d in dims)
        result[place] = fresh[tuple(own.get(d, slice(None)) for d in dims)]
    return [result]


def _of_request(scope: Scope, op: Op, dims: Dims, request: int) -> dict[str, slice]:
    """Where a request lies in an array over ``dims``: everywhere, if all have one position."""
    if not scope.position.ndim:
        return {}
    if BATCH not in dims:
        op.reject(f"has no dim {BATCH}, but each request its own position")
    return {BATCH: slice(request, request + 1)}


@meaning(batches.AppendTokens)
def _append_tokens(scope: Scope, op: batches.AppendTokens) -> list[Array]:
    cache, new = op.operands
    dims, own = _dims(cache), (op.requests, op.dim)
    result = np.moveaxis(scope.of(cache).copy(), [dims.index(d) for d in own], [0, 1])
    rest = tuple(d for d in dims if d not in own)
    fresh = aligned(scope.of(new), _dims(new), (op.tokens, op.rows, *rest))[:, 0]
    fresh = coded_rows(fresh) if op.coded else fresh
    owners, positions = _owned(scope, op.tokens)
    for token, (owner, position) in enumerate(zip(owners, positions, strict=True)):
        if position < 0:
            continue
        if owner >= len(result) or position >= result.shape[1]:
            fail(
                "interp-shape",
                f"{op.NAME}: row {position} of request {owner} is not in a cache of "
                f"{len(result)} requests with {result.shape[1]} rows",
                op.span,
            )
        result[owner, position] = fresh[token]
    return [np.moveaxis(result, [0, 1], [dims.index(d) for d in own])]


@meaning(batches.TokenCaches)
def _token_caches(scope: Scope, op: batches.TokenCaches) -> list[Array]:
    owners, _ = _owned(scope, op.tokens)
    if owners.size and owners.max() >= scope.extents[op.requests]:
        fail(
            "interp-shape",
            f"{op.NAME}: there is no request {owners.max()} among {scope.extents[op.requests]}",
            op.span,
        )
    return [scope.of(op.operands[0]).take(owners, _dims(op.operands[0]).index(op.requests))]


def _owned(scope: Scope, tokens: str) -> tuple[Array, Array]:
    """The owner and the position of each of ``tokens``."""
    shape, own = scope.extents[BATCH], scope.tokens_of(tokens)
    owners = np.broadcast_to(np.asarray(scope.scalars.get(OWNER, 0)), shape)
    return owners[own], np.broadcast_to(scope.position, shape)[own]


@meaning(batches.TakeTokens)
def _take_tokens(scope: Scope, op: batches.TakeTokens) -> list[Array]:
    axis = _dims(op.operands[0]).index(op.of)
    return [scope.of(op.operands[0])[(slice(None),) * axis + (scope.tokens_of(op.tokens),)]]


@meaning(batches.JoinTokens)
def _join_tokens(scope: Scope, op: batches.JoinTokens) -> list[Array]:
    return [np.concatenate([scope.of(operand) for operand in op.operands], op.place)]


@meaning(graph.Embed)
def _embed(scope: Scope, op: graph.Embed) -> list[Array]:
    ids, table = scope.of(op.operands[0]), scope.of(op.operands[1])
    axis = _dims(op.operands[1]).index(op.dim)
    if ids.size and not 0 <= ids.min() <= ids.max() < table.shape[axis]:
        fail("interp-input", f"a token id is outside 0 .. {table.shape[axis] - 1}", op.span)
    found = np.moveaxis(table, axis, 0)[ids]
    if len(op.operands) > 2:
        learned, dims = scope.of(op.operands[2]), _dims(op.operands[0])
        place = scope.positions_of(dims)[..., None] + np.arange(ids.shape[-1])
        if place.size and place.max() >= len(learned):
            fail("interp-input", f"a position is outside 0 .. {len(learned) - 1}", op.span)
        found = found + learned[np.maximum(place, 0)]
    return [found]


@meaning(ranks.AllReduce)
def _all_reduce(scope: Scope, op: ranks.AllReduce) -> list[Array]:
    first, *others = scope.place.exchanged(scope.of(op.operands[0]), op)
    for other in others:
        first = first + other
    return [first]


@meaning(ranks.ZerosLike)
def _zeros_like(scope: Scope, op: ranks.ZerosLike) -> list[Array]:
    return [np.zeros_like(scope.of(op.operands[0]))]


@meaning(ranks.AllReduceResidualRmsNorm)
def _all_reduce_residual_rms_norm(scope: Scope, op: ranks.AllReduceResidualRmsNorm) -> list[Array]:
    """The sum over ranks is added up as an array with a leading dim of ranks."""
    partial, residual, gain = map(scope.of, op.operands)
    stream = residual + np.add.reduce(np.stack(scope.place.exchanged(partial, op)), 0)
    lanes = np.moveaxis(stream, _dims(op.operands[1]).index(op.dim), -1)
    power = np.einsum("...e,...e->...", lanes, lanes)[..., None] / lanes.shape[-1]
    normed = lanes * gain * (power + op.eps) ** -0.5
    return [np.moveaxis(normed, -1, _dims(op.operands[1]).index(op.dim)), stream]


@meaning(ranks.AllGather)
def _all_gather(scope: Scope, op: ranks.AllGather) -> list[Array]:
    parts = scope.place.exchanged(scope.of(op.operands[0]), op)
    axis = _dims(op.operands[0]).index(op.dim)
    return [np.concatenate(parts, axis).take(range(scope.extents[op.whole]), axis)]


@meaning(ranks.RankPartOf)
def _rank_part(scope: Scope, op: ranks.RankPartOf) -> list[Array]:
    axis = _dims(op.operands[0]).index(op.whole)
    return [scope.place.own_part(scope.of(op.operands[0]), axis, scope.extents[op.dim], op)]


@meaning(ranks.RankEmbed)
def _rank_embed(scope: Scope, op: ranks.RankEmbed) -> list[Array]:
    ids, table = scope.of(op.operands[0]), scope.of(op.operands[1])
    axis = _dims(op.operands[1]).index(op.dim)
    if ids.size and not 0 <= ids.min() <= ids.max() < scope.extents[op.whole]:
        fail("interp-input", f"a token id is outside 0 .. {scope.extents[op.whole] - 1}", op.span)
    own = ids - scope.place.number(op) * table.shape[axis]
    here = (own >= 0) & (own < table.shape[axis])
    rows = np.moveaxis(table, axis, 0)[np.where(here, own, 0)]
    return [np.where(here[..., None], rows, 0)]


@meaning(graph.Fuse)
def _fuse(scope: Scope, op: graph.Fuse) -> list[Array]:
    (body,) = op.regions
    scope.values.update(zip(body.args, [scope.of(o) for o in op.operands], strict=True))
    return run_block(body, scope)


@meaning(graph.Repeat)
def _repeat(scope: Scope, op: graph.Repeat) -> list[Array]:
    (body,) = op.regions
    carried = [scope.of(o) for o in op.operands[: op.carried]]
    stacks = [scope.of(o) for o in op.operands[op.carried :]]
    layers = rounds_of(op, scope.extents[op.dim], scope.scalars)
    collected: list[dict[int, Array]] = [
        dict(enumerate(scope.of(op.continued(i)))) if op.rounds else {}
        for i in range(op.carried, len(op.results))
    ]
    for layer in layers:
        scope.layer = layer
        arguments = [*carried, *(stack[layer] for stack in stacks)]
        scope.values.update(zip(body.args, arguments, strict=True))
        given = run_block(body, scope)
        carried = given[: op.carried]
        for kept, value in zip(collected, given[op.carried :], strict=True):
            kept[layer] = value
    return [*carried, *(np.stack(list(kept.values())) for kept in collected)]
