"""The ops of latent attention with absorbed weights (MLA) that are one kernel.

The softmax reads the sum of two scores: of absorbed queries with cached latents, and of rotary
lanes with cached rotary keys. All heads share both caches; what is attended are latents again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshc.analysis.cuda.dsmem import LatentAttention
from meshc.cost import latent
from meshc.cost.latent import LatentChoice
from meshc.devices import Device
from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.graph.flow import (
    Entry,
    Flow,
    Mismatch,
    dims_of,
    entry_of,
    norm_of,
    only_dim,
    residual,
)
from meshc.passes.graph.fusing.parts import (
    cache_of,
    check_causal,
    products_of,
    same_rope,
    scores_of,
)
from meshc.passes.graph.fusing.pattern import Choice, DoesNotFit, Match, Pattern

_NAMES = ("query", "query_rope", "latent", "key_rope")


@dataclass(frozen=True)
class Sizes:
    """Extents of the block, the tokens that the caches hold, and whether the block gives a part of
    a sum over ranks."""

    shape: LatentAttention
    context: int
    partial: bool = False


class LatentBlock(Pattern[Sizes]):
    """An attention block with latents and rotary keys in caches."""

    NAME: ClassVar[str] = "latent_block"
    TITLE: ClassVar[str] = "a latent attention block"
    MARKS: ClassVar[tuple[type[Op], ...]] = (graph.Softmax,)

    def marked(self, flow: Flow, softmax: Any) -> bool:
        """Whether the softmax is over a sum of scores, as only latent attention has it."""
        scaled, _ = scores_of(flow, softmax)
        return isinstance(scaled, Value) and isinstance(flow.makers.get(scaled), graph.Add)

    def match(self, flow: Flow, softmax: graph.Softmax) -> Match[Sizes]:
        check_causal(softmax)
        if softmax.window:
            raise Mismatch(f"{softmax.NAME} {softmax.result} has a window", softmax)
        scaled, scale = scores_of(flow, softmax)
        total = flow.maker(scaled, graph.Add, "the scores", softmax)
        weighted = flow.reader(softmax.result, graph.Matmul, "the softmax", softmax)
        if weighted.contract != (softmax.dim,) or len(weighted.operands) != 2:
            raise Mismatch(f"{weighted.NAME} {weighted.results[0]} weighs no latents", weighted)
        parts = [flow.maker(value, graph.Matmul, "the scores", total) for value in total.operands]
        parts.sort(key=lambda op: op.operands[1] is not weighted.operands[1])
        plain, rotary = parts
        if (
            plain.operands[1] is not weighted.operands[1]
            or len(plain.operands + rotary.operands) != 4
        ):
            raise Mismatch(f"{weighted.operands[1]} gives weighted values, but no scores", weighted)
        latents = cache_of(flow, plain.operands[1], softmax, plain)
        keys = cache_of(flow, rotary.operands[1], softmax, rotary)
        absorb = flow.maker(plain.operands[0], graph.Matmul, "the absorbed query", plain)
        q_rope = flow.maker(rotary.operands[0], graph.Rope, "the rotary query", rotary)
        k_rope = flow.maker(keys.operands[1], graph.Rope, "the rotary key", keys)
        same_rope(q_rope, k_rope, only_dim(rotary), softmax.rows)
        latent_norm = norm_of(flow, latents.operands[1], only_dim(plain), latents)
        expand = flow.reader(weighted.result, graph.Matmul, "the attended latents", weighted)
        output = flow.reader(expand.results[0], graph.Matmul, "the attended values", expand)
        for product in (absorb, expand, output):
            if len(product.operands) != 2:
                raise Mismatch(f"{product.NAME} has more than one weight", product)
            flow.weight(product.operands[1], product)
        made = (absorb.operands[0], q_rope.operands[0], latent_norm.operands[0], k_rope.operands[0])
        projections = _projections(flow, made, absorb)
        added = residual(flow, output.results[0], projections.entry, output)
        shape = _shape(flow, projections, made, absorb, expand, output, softmax)
        ops: tuple[Op, ...] = (*projections.ops, latent_norm, q_rope, k_rope, latents, keys, absorb)
        ops += (plain, rotary, total, *scale, softmax, weighted, expand, output)
        ops += () if added is None else (added,)
        operands = {**projections.operands, "latent_norm": latent_norm.operands[1]}
        operands |= {"latents": latents.operands[0], "keys": keys.operands[0]}
        operands |= {"absorb": absorb.operands[1], "expand": expand.operands[1]}
        operands |= {"output": output.operands[1]}
        outcome = output.results[0] if added is None else added.result
        outputs = (outcome, latents.result, keys.result)
        sizes = Sizes(shape, flow.extent([softmax.dim]), added is None)
        return Match(softmax, ops, operands, outputs, sizes)

    def choose(self, device: Device, match: Match[Sizes], asked: Mapping[str, Any]) -> Choice:
        shape = match.sizes.shape
        wanted = asked.get("cluster", 0), asked.get("heads", 0)
        if asked.get("dataflow", "split_token") != "split_token" or asked.get("resident", 1) != 1:
            raise DoesNotFit("it is computed by split_token, one block on a core")
        choice = latent.choose(device, shape, match.sizes.context, *wanted)
        if choice is None:
            raise DoesNotFit("; ".join(latent.all_misfits(device, shape, *wanted)))
        fuse = graph.Fuse(
            kernel=self.NAME,
            dataflow="split_token",
            cluster=choice.cluster,
            heads=choice.group,
            partial=match.sizes.partial,
        )
        return Choice(fuse, _remark(choice))


def _remark(choice: LatentChoice) -> str:
    return (
        f"latent_block: split_token, clusters of {choice.cluster} for {choice.group} heads each, "
        f"{choice.dsmem_bytes} bytes of DSMEM per step, {choice.read_bytes} bytes read by blocks, "
        f"{choice.memory.bytes} bytes of shared memory ({choice.memory.stages} tiles), "
        f"{choice.blocks} blocks, {choice.waves} {'wave' if choice.waves == 1 else 'waves'}, "
        f"predicted {1e6 * choice.seconds:.1f} us"
    )


@dataclass(frozen=True)
class _Projections:
    """Where the block begins, what is made of it and of the query's latent, if there is one, and
    gains and weights of all that by the names of the kernel's operands."""

    entry: Entry
    ops: tuple[Op, ...]
    operands: dict[str, Operand]
    query_rank: int


def _projections(flow: Flow, made: tuple[Operand, ...], at: Op) -> _Projections:
    """All of ``made`` are products of one value, or the first two, of queries, of a norm of one."""
    reduced = _query_latent(flow, made[0], made[2], at)
    if reduced is None:
        products, weights = _products(flow, made, at)
        entry = entry_of(flow, products[0].operands[0], only_dim(products[0]), products[0])
        operands = {**entry.operands, **dict(zip(_NAMES, weights, strict=True))}
        return _Projections(entry, (*entry.ops, *products), operands, 0)
    of_query, query_weights = _products(flow, made[:2], at)
    products, weights = _products(flow, (reduced.operands[0], *made[2:]), at)
    entry = entry_of(flow, products[0].operands[0], only_dim(products[0]), products[0])
    first, *others = weights
    of_latent = {"query_latent": first, "query_norm": reduced.operands[1]}
    return _Projections(
        entry,
        (*entry.ops, *products, reduced, *of_query),
        {
            **entry.operands,
            **of_latent,
            **dict(zip(_NAMES, [*query_weights, *others], strict=True)),
        },
        flow.extent([reduced.dim]),
    )


def _query_latent(flow: Flow, query: Operand, latent: Operand, at: Op) -> graph.RmsNorm | None:
    """The norm that queries are products of, if latents are of another value."""
    ours, theirs = (flow.maker(v, graph.Matmul, "a projection", at) for v in (query, latent))
    if ours.operands[0] is theirs.operands[0]:
        return None
    found = norm_of(flow, ours.operands[0], only_dim(ours), ours)
    made = flow.maker(found.operands[0], graph.Matmul, "the query's latent", found)
    if made.operands[0] is not theirs.operands[0]:
        raise Mismatch("query and latent are products of different values", ours)
    return found


def _products(
    flow: Flow, made: Sequence[Operand], at: Op
) -> tuple[list[graph.Matmul], list[Value]]:
    """Of one value; see :func:`products_of`."""
    return products_of(flow, made, ["a projection"] * len(made), "query and latent", at)


def _shape(
    flow: Flow,
    projections: _Projections,
    made: tuple[Operand, ...],
    absorb: graph.Matmul,
    expand: graph.Matmul,
    output: graph.Matmul,
    softmax: graph.Softmax,
) -> LatentAttention:
    """Extents from the dims of the projections, which must be those of latent attention."""
    entry = projections.entry
    vectors = [d for d in dims_of(entry.x) if d != entry.dim]
    query, rotary, latent, key = ([d for d in dims_of(v) if d not in vectors] for v in made)
    lane = only_dim(absorb)
    heads = [d for d in query if d != lane]
    value = [d for d in dims_of(expand.results[0]) if d not in (*vectors, *heads)]
    wanted = {
        "queries": len(heads) == 1 and lane in query,
        "rotary queries": set(rotary) == {*heads, *key} and len(key) == 1,
        "latents": len(latent) == 1 and expand.contract == tuple(latent),
        "absorbed queries": set(dims_of(absorb.results[0])) == {*vectors, *heads, *latent},
        "values": len(value) == 1 and set(output.contract) == {*heads, *value},
        "weights": set(dims_of(softmax.result)) == {*vectors, *heads, softmax.dim},
    }
    for what, holds in wanted.items():
        if not holds:
            raise Mismatch(f"{what} have other dims than those of latent attention", softmax)
    return LatentAttention(
        flow.extent([entry.dim]),
        flow.extent(heads),
        flow.extent(latent),
        flow.extent(key),
        flow.extent([lane]),
        flow.extent(value),
        flow.extent(vectors),
        query_rank=projections.query_rank,
    )
