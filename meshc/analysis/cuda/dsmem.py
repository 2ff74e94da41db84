"""What blocks of a cluster move between their shared memories: ClusterReduce and ClusterGather.

Two ways of doing them. ``ranked`` is what emitted kernels do: every block reads, or is sent, what
each other block has, in the order of ranks, which is exact for every cluster size and gives all
blocks the same bits. ``tree`` is what the paper prints: log2(N) rounds with doubling strides, for
powers of two (ClusterFusion, Algorithms 1 and 2 and the formulas of section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2
from typing import Literal

VALUE_BYTES = 4
"""Bytes of a value on its way: partial sums are f32."""

MOST_JOINED = 8
"""Sums over latents that a block has for its peers at once, if one request has no more."""

Scheme = Literal["ranked", "tree"]


@dataclass(frozen=True)
class Attention:
    """Sizes of an attention block: ``batch`` requests, ``hidden`` values of the residual, ``heads``
    query heads over ``kv_heads`` key/value heads of ``head`` values."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    batch: int = 1

    @property
    def group(self) -> int:
        """Query heads of a key/value head: those of one cluster."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of the projections to queries, key and value of a cluster."""
        return (self.group + 2) * self.head

    @property
    def attended(self) -> int:
        """Values of a cluster that the output projection takes."""
        return self.group * self.head


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of weight-absorbed MLA (appendix B.1), ``group`` heads per cluster.

    ``latent`` is kv_lora_rank, ``rope`` the rotary lanes that queries and the cache have beside,
    ``query`` and ``value`` the lanes of a head's query (without ``rope``) and value. Queries are
    products of a latent of their own with ``query_rank`` values, or, if that is 0, of the input.
    """

    hidden: int
    heads: int
    latent: int
    rope: int
    query: int
    value: int
    batch: int = 1
    group: int = 1
    query_rank: int = 0

    @property
    def clusters(self) -> int:
        """Clusters of a launch."""
        return self.heads // self.group

    @property
    def key(self) -> int:
        """Values of a cached token."""
        return self.latent + self.rope

    @property
    def query_rows(self) -> int:
        """Rows of the projection to the queries of a cluster."""
        return self.group * (self.query + self.rope)

    @property
    def shared_rows(self) -> int:
        """Rows of the projections that every cluster makes for itself."""
        return self.key + self.query_rank

    @property
    def query_width(self) -> int:
        """Values of a row of the projection to queries."""
        return self.query_rank or self.hidden

    @property
    def attended(self) -> int:
        """Values of a cluster that the output projection takes."""
        return self.group * self.value

    @property
    def round(self) -> int:
        """Requests whose sums over latents a cluster joins at once."""
        return min(max(MOST_JOINED // self.group, 1), self.batch)

    @property
    def rounds(self) -> list[int]:
        """Requests of each round."""
        return [min(self.round, self.batch - n) for n in range(0, self.batch, self.round)]

    def own_heads(self, cluster: int) -> int:
        """Heads of a block; where a cluster has fewer heads than blocks, several share one."""
        return max(self.group // cluster, 1)


@dataclass(frozen=True)
class Collective:
    """A vector of ``values``: gathered from the blocks' shares of it, reduced, or reduced so that
    each block gets a share of the result (``scatter``); or ``values`` that all blocks together read
    from each other (``read``)."""

    kind: Literal["reduce", "gather", "scatter", "read"]
    what: str
    values: int


def reduce_bytes(size: int, cluster: int, scheme: Scheme = "ranked") -> int:
    """Bytes that a ClusterReduce of ``size`` bytes moves in one cluster, all blocks together.

    ``ranked``: ``size * (N - 1) * N``; ``tree``: ``size * log2(N) * N``. Raises ValueError for a
    tree over no power of two, where doubling strides count terms twice.
    """
    if scheme == "ranked":
        return size * (cluster - 1) * cluster
    if cluster & (cluster - 1):
        raise ValueError(f"a tree over {cluster} blocks, which is no power of two")
    return size * int(log2(cluster)) * cluster


def gather_bytes(size: int, cluster: int, scheme: Scheme = "ranked") -> int:
    """Bytes that a ClusterGather of ``size`` bytes, of which each block has a share, moves in one
    cluster.

    ``size * (N - 1)`` either way: of the paper's formula, over a segment per block,
    ``2^(log2(N/2)+1) - 1`` is ``N - 1``.
    """
    if scheme == "tree" and cluster & (cluster - 1):
        raise ValueError(f"a tree over {cluster} blocks, which is no power of two")
    return size * (cluster - 1)


def scatter_bytes(size: int, cluster: int, scheme: Scheme = "ranked") -> int:
    """Bytes of a reduction of ``size`` bytes per block of which each block needs its share.

    ``ranked``: ``size * (N - 1)``; the paper reduces the whole vector for all.
    """
    return size * (cluster - 1) if scheme == "ranked" else reduce_bytes(size, cluster, scheme)


def split_token(shape: Attention) -> tuple[Collective, ...]:
    """Blocks share rows of the projections, then cached tokens, then output columns (Algorithm 3).

    Each block's sums are relative to its own highest scores, which readers scale them by; the
    printed algorithm has a reduction of its own for the maxima.
    """
    sums = shape.batch * (shape.attended + 2 * shape.group)
    return (
        Collective("gather", "queries, key and value", shape.batch * shape.rows),
        Collective("reduce", "weighted values, weights and highest scores", sums),
    )


def split_head(shape: Attention, context: int) -> tuple[Collective, ...]:
    """Blocks share the lanes of the head throughout (Algorithm 5): each has partial scores of all
    ``context`` tokens that a query sees, and a partial output, of which it completes a share."""
    return (
        Collective("reduce", "scores", shape.batch * shape.group * context),
        Collective("scatter", "output", shape.batch * shape.hidden),
    )


def split_token_latent(shape: LatentAttention, cluster: int) -> tuple[Collective, ...]:
    """MLA (Algorithm 4), put right: the rope lanes are part of query and key, the attended vector
    has all ``latent`` lanes (the printed formula has a block's share). Blocks share the rows of the
    values' weights, so values are gathered, not reduced.

    A block has whole heads or a share of one, and gets plain queries and sums of these alone, the
    latter with each block's highest score and sum of weights. One block has the new latent.
    """
    heads = shape.own_heads(cluster)
    found = [
        *_query_latent(shape, cluster),
        Collective("read", "query", shape.batch * _queries_read(shape, cluster)),
        Collective("read", "latent", shape.batch * _latents_read(shape, cluster)),
    ]
    for requests in shape.rounds:
        found += [
            Collective("gather", "absorbed query", requests * shape.group * shape.latent),
            Collective("reduce", "weighted latents", requests * heads * (shape.latent + 2)),
        ]
    return (*found, Collective("gather", "attended value", shape.batch * shape.attended))


def _query_latent(shape: LatentAttention, cluster: int) -> tuple[Collective, ...]:
    """All blocks get the query's latent, where there is one."""
    if not shape.query_rank:
        return ()
    count = shape.batch * shape.query_rank * (cluster - 1)
    return (Collective("read", "latent of the query", count),)


def _shares(groups: int, cluster: int) -> list[range]:
    """Rows that each block has of groups of 16."""
    return [
        range(16 * (groups * n // cluster), 16 * (groups * (n + 1) // cluster))
        for n in range(cluster)
    ]


def _projected(shape: LatentAttention, cluster: int) -> list[range]:
    """Rows that each block projects the input to: queries or their latent, then latent and key."""
    return _shares(_first_groups(shape) + -(-shape.key // 16), cluster)


def _first_groups(shape: LatentAttention) -> int:
    return -(-(shape.query_rank or shape.query_rows) // 16)


def _queries_read(shape: LatentAttention, cluster: int) -> int:
    """Values of queries that blocks read from others: rotary lanes of all heads, the rest of their
    own."""
    sharers, heads, lanes = cluster // shape.group or 1, shape.own_heads(cluster), shape.query
    count = 0
    made = _projected(shape, cluster)
    if shape.query_rank:
        made = _shares(-(-shape.query_rows // 16), cluster)
    for rank, own in enumerate(made):
        first = rank // sharers * heads
        for head in range(shape.group):
            start = head * (lanes + shape.rope)
            needed = range(start if first <= head < first + heads else start + lanes, start + lanes)
            for part in (needed, range(start + lanes, start + lanes + shape.rope)):
                count += len(part) - _common(part, own)
    return count


def _latents_read(shape: LatentAttention, cluster: int) -> int:
    """Values of the new latent and rotary key that the last block reads from others."""
    start = 16 * _first_groups(shape)
    return shape.key - _common(range(start, start + shape.key), _projected(shape, cluster)[-1])


def _common(one: range, other: range) -> int:
    return max(min(one.stop, other.stop) - max(one.start, other.start), 0)


def traffic(
    collectives: Iterable[Collective],
    cluster: int,
    scheme: Scheme = "ranked",
    value_bytes: int = VALUE_BYTES,
) -> int:
    """Bytes that ``collectives`` move in one cluster."""
    count = {"reduce": reduce_bytes, "gather": gather_bytes, "scatter": scatter_bytes}
    found = 0
    for c in collectives:
        size = c.values * value_bytes
        found += size if c.kind == "read" else count[c.kind](size, cluster, scheme)
    return found


def printed_traffic(dataflow: str, cluster: int, **sizes: int) -> int:
    """The totals as the paper's appendix prints them, in values per cluster, tree scheme.

    ``split_token``: Reduce(H) + Gather(3h); ``split_head``: Reduce(S) + Reduce(D);
    ``latent``: Gather(h) + 2 Gather(l) + Reduce(l) + Reduce(H), h and l being a block's share.
    Sizes by the paper's letters: H and L whole, S the context, D the hidden size.
    """
    if dataflow == "split_token":
        gathered = gather_bytes(3 * sizes["H"], cluster, "tree")
        return reduce_bytes(sizes["H"], cluster, "tree") + gathered
    if dataflow == "split_head":
        return sum(reduce_bytes(sizes[name], cluster, "tree") for name in ("S", "D"))
    gathered = sum(gather_bytes(sizes[name], cluster, "tree") for name in ("H", "L", "L"))
    share = sizes["L"] // cluster
    reduced = sum(reduce_bytes(size, cluster, "tree") for size in (share, sizes["H"]))
    return gathered + reduced
