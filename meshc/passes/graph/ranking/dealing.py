"""Which dims of a graph can be dealt to ranks, and how much of each a rank has.

A dim is dealt if every op that it occurs in can be computed by parts: what reads all of a dim at
once, as a norm does, keeps it whole. Heads go together with the key heads that they read; of two
dims of one value a single one is dealt, heads before experts before all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshc.analysis.heads import head_shares
from meshc.ir.builder import defined_values
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.ranks import RankPart
from meshc.ir.rows import Attention
from meshc.ir.types import TensorType
from meshc.ir.values import Value

_ALONG_DIM = (
    graph.RmsNorm, graph.Centre, graph.Softmax, graph.Rope, graph.Append, graph.TopK, graph.ArgMax
)  # fmt: skip


def dealt_dims(
    module: Module, count: int, experts: str, multiple: int, keep: Iterable[str] = ()
) -> dict[RankPart, int]:
    """The parts that each of ``count`` ranks has, with their extents. ``experts`` are dealt
    ``whole`` or by their ``features``; extents but those of heads and experts are multiples of
    ``multiple``. Dims in ``keep`` are dealt to nobody."""
    found: dict[RankPart, int] = {}
    chosen: set[str] = set()
    whole = {*_whole_dims(module), *keep}
    taken = {*module.dims}

    def add(whole_dim: str, extent: int, team: int = 0, copies: int = 1) -> None:
        name = f"{whole_dim}_rank"
        while name in taken:
            name += "_1"
        taken.add(name)
        chosen.add(whole_dim)
        found[RankPart(name, whole_dim, 0 if team == extent else team, copies)] = extent

    def fits(dims: Iterable[str]) -> bool:
        asked = {d for d in dims if d}
        return not asked & (whole | chosen) and not _meet(module, asked | chosen, asked)

    for one in module.attention:
        if one.query and fits((one.query, one.key)):
            for dim, extent, team, copies in _heads(one, module.dims, count):
                add(dim, extent, team, copies)
    scored = _expert_dims(module) if experts == "whole" else []
    for dim in (*scored, *_weight_dims(module)):
        free = dim not in keep and (dim in scored or dim not in whole)
        if free and dim not in chosen and not _meet(module, {dim} | chosen, {dim}):
            extent = -(-module.dims[dim] // count)
            add(dim, extent if dim in scored else -(-extent // multiple) * multiple)
    return found


def scoring_params(module: Module) -> set[Value]:
    """The parameters, and slices of them in loops, from which scores of experts are made: each rank
    chooses among all experts, so it has these whole. What has no dim of experts is no matter."""
    experts = {*_expert_dims(module)}
    makers = {result: op for op in module.walk() for result in op.results}
    outer = {
        inner: given
        for op in module.walk()
        if isinstance(op, graph.Repeat)
        for given, inner in zip(op.tensors(), op.regions[0].args, strict=True)
    }
    pending = [
        value for op in module.walk() if isinstance(op, graph.TopK) for value in op.tensors()
    ]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen or not experts & {*tensor_type(value).dims}:
            continue
        seen.add(value)
        if value in makers:
            pending += makers[value].tensors()
        elif value in outer:
            pending.append(outer[value])
    return seen


def _heads(one: Attention, dims: dict[str, int], count: int) -> Iterator[tuple[str, int, int, int]]:
    """The dim, extent of a part, elements of a team and ranks of a team, of query heads and of the
    key heads that they share, as :func:`head_shares` deals them."""
    queries, keys = dims[one.query], dims[one.key] if one.key else 0
    if not keys or one.query == one.key:
        yield one.query, -(-queries // count), 0, 1
        return
    share = head_shares(queries, keys, count)
    yield one.query, share.queries, share.team, share.copies
    yield one.key, share.keys, share.keys, share.copies


def _whole_dims(module: Module) -> Iterator[str]:
    """Dims that an op reads all of at once, those of inputs and of values that loops carry, and
    lanes and keys of attention."""
    for op in module.walk():
        if isinstance(op, _ALONG_DIM):
            yield op.dim
        if isinstance(op, graph.RmsNorm):
            yield from op.also
        if isinstance(op, (graph.Rope, graph.Softmax, graph.Append)):
            yield op.rows
        if isinstance(op, graph.Repeat):
            yield op.dim
            for value in op.tensors()[: op.carried]:
                yield from tensor_type(value).dims
        if isinstance(op, graph.Embed):
            yield from tensor_type(op.result).dims
            for learned in op.tensors()[2:]:  # each rank adds them, of any position
                yield op.dim
                yield from tensor_type(learned).dims
    for param in module.function.params:
        if param.role == "in":
            yield from tensor_type(param.value).dims
    for one in module.attention:
        yield from (one.lane, one.keys)
    if module.rows is not None:
        yield from (module.rows.dim, module.rows.capacity)


def _expert_dims(module: Module) -> list[str]:
    """Dims that count experts, of which rows choose some."""
    return list(dict.fromkeys(op.dim for op in module.walk() if isinstance(op, graph.TopK)))


def _weight_dims(module: Module) -> list[str]:
    """Dims of weights, in the order in which products with weights contract or give them."""
    heads = {d for one in module.attention for d in (one.query, one.key)}
    dims = [
        dim
        for param in module.function.params
        if param.role == "weight"
        for dim in tensor_type(param.value).dims
    ]
    return [dim for dim in dict.fromkeys(dims) if dim not in heads]


def _meet(module: Module, dims: set[str], new: set[str]) -> bool:
    """Whether a value has one of the ``new`` dims and another of ``dims``."""
    for value in defined_values(module):
        own = set(value.type.dims) & dims if isinstance(value.type, TensorType) else set()
        if len(own) > 1 and own & new:
            return True
    return False
