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
    ``query`` and ``value`` the lanes of a head's query (without ``rope``) and value.
    """

    hidden: int
    heads: int
    latent: int
    rope: int
    query: int
    value: int
    batch: int = 1
    group: int = 1

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
    def attended(self) -> int:
        """Values of a cluster that the output projection takes."""
        return self.group * self.value


@dataclass(frozen=True)
class Collective:
    """``values`` per block that are gathered (a segment), reduced (the whole vector), or reduced
    so that each block gets a share of the result (``scatter``)."""

    kind: Literal["reduce", "gather", "scatter"]
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
    """Bytes that a ClusterGather of a ``size``-byte segment per block moves in one cluster.

    ``size * (N - 1) * N`` either way: the paper's ``2^(log2(N/2)+1) - 1`` is ``N - 1``.
    """
    if scheme == "tree" and cluster & (cluster - 1):
        raise ValueError(f"a tree over {cluster} blocks, which is no power of two")
    return size * (cluster - 1) * cluster


def scatter_bytes(size: int, cluster: int, scheme: Scheme = "ranked") -> int:
    """Bytes of a reduction of ``size`` bytes per block of which each block needs its share.

    ``ranked``: ``size * (N - 1)``; the paper reduces the whole vector for all.
    """
    return size * (cluster - 1) if scheme == "ranked" else reduce_bytes(size, cluster, scheme)


def split_token(shape: Attention, cluster: int) -> tuple[Collective, ...]:
    """Blocks share rows of the projections, then cached tokens, then output columns (Algorithm 3).

    Maxima are reduced before the sums of weights, which are scaled by them; the printed algorithm
    sums first.
    """
    own = shape.batch * -(-shape.rows // cluster)
    sums = shape.batch * (shape.attended + shape.group)
    return (
        Collective("gather", "queries, key and value", own),
        Collective("reduce", "highest scores", shape.batch * shape.group),
        Collective("reduce", "weighted values and weights", sums),
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
    has all ``latent`` lanes (the printed formula has a block's share), maxima come first. Blocks
    share the rows of the values' weights, so values are gathered, not reduced."""
    batch, group = shape.batch, shape.group

    def own(lanes: int) -> int:
        return batch * -(-lanes // cluster)

    return (
        Collective("gather", "query", own(shape.query_rows)),
        Collective("gather", "latent", own(shape.key)),
        Collective("gather", "absorbed query", own(group * shape.latent)),
        Collective("reduce", "highest score", batch * group),
        Collective("reduce", "weighted latents and weights", batch * group * (shape.latent + 1)),
        Collective("gather", "attended value", own(shape.attended)),
    )


def traffic(
    collectives: Iterable[Collective],
    cluster: int,
    scheme: Scheme = "ranked",
    value_bytes: int = VALUE_BYTES,
) -> int:
    """Bytes that ``collectives`` move in one cluster."""
    count = {"reduce": reduce_bytes, "gather": gather_bytes, "scatter": scatter_bytes}
    return sum(count[c.kind](c.values * value_bytes, cluster, scheme) for c in collectives)


def printed_traffic(dataflow: str, cluster: int, **sizes: int) -> int:
    """The totals as the paper's appendix prints them, in values per cluster, tree scheme.

    ``split_token``: Reduce(H) + Gather(3h); ``split_head``: Reduce(S) + Reduce(D);
    ``latent``: Gather(h) + 2 Gather(l) + Reduce(l) + Reduce(H), h and l being a block's share.
    Sizes by the paper's letters: H and L whole, S the context, D the hidden size.
    """
    if dataflow == "split_token":
        segment = 3 * sizes["H"] // cluster
        return reduce_bytes(sizes["H"], cluster, "tree") + gather_bytes(segment, cluster, "tree")
    if dataflow == "split_head":
        return sum(reduce_bytes(sizes[name], cluster, "tree") for name in ("S", "D"))
    share, latent = sizes["H"] // cluster, sizes["L"] // cluster
    gathered = gather_bytes(share, cluster, "tree") + 2 * gather_bytes(latent, cluster, "tree")
    reduced = sum(reduce_bytes(size, cluster, "tree") for size in (latent, sizes["H"]))
    return gathered + reduced
