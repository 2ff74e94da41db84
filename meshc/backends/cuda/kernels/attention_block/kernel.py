"""The attention block of a decode step as one kernel per layer (ClusterFusion, Algorithm 3).

A cluster of blocks computes one key/value head with its query heads, for all requests of a batch,
so that weights are read once. Dataflow ``split_token``: blocks share the rows of the projections
(one ClusterGather), then the cached tokens (one ClusterReduce of sums relative to each block's
highest scores, which readers scale; the paper's has two), then the columns of the output. Dataflow
``split_head`` (Algorithm 5): blocks share the lanes of the head throughout, so scores and outputs
are summed over the cluster; the caches hold each block's lanes together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshc.analysis.cuda import blocks, dsmem
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import (
    DoesNotFit,
    FirstReads,
    arena,
    check_cluster,
    first_reads,
    literal,
    optional_factor,
    page_misfits,
)
from meshc.backends.templates import render
from meshc.cost import clusters
from meshc.devices import Device

_TEMPLATES = {
    "split_token": "split_token.cu.jinja",
    "split_head": "split_head.cu.jinja",
}
_MOST_OWN_BLOCKS = 32
"""Blocks of a row group that a warp multiplies alone."""
_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Attention:
    """What an attention block computes. ``window`` 0 means all tokens; ``scale`` is of scores;
    ``bias`` is that of queries, keys and values, ``head_epsilons`` of the norms of each head's
    queries and keys, where they are normed. A ``partial`` one does not add the residual. What is
    added is times ``factor``, a bias included."""

    batch: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    dtype: str
    page: int
    epsilon: float
    scale: float
    bias: bool = False
    window: int = 0
    out_bias: bool = False
    head_epsilons: tuple[float, float] | None = None
    partial: bool = False
    factor: float = 1.0

    @property
    def sizes(self) -> dsmem.Attention:
        """The extents alone, which say what a cluster has of them."""
        return dsmem.Attention(self.hidden, self.heads, self.kv_heads, self.head, self.batch)


@dataclass(frozen=True)
class AttentionPlan:
    """How a cluster of ``cluster`` blocks of ``device`` does it by ``dataflow``, for ``heads``
    query heads of one key/value head; ``split_head`` has room for the scores of ``context`` tokens;
    ``resident`` blocks share a multiprocessor."""

    shape: Attention
    device: Device
    cluster: int
    dataflow: str
    context: int
    resident: int
    heads: int
    tile_bytes: int
    stages: int
    arena: Arena

    @property
    def clusters(self) -> int:
        """Clusters of the grid."""
        return self.shape.heads // self.heads

    @property
    def sharers(self) -> int:
        """Clusters that share a key/value head."""
        return self.shape.sizes.group // self.heads

    @property
    def sizes(self) -> dsmem.Attention:
        """Extents by which analyses know what all clusters take: a key/value head for each."""
        return _sizes(self.shape, self.heads)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.clusters * self.cluster

    def first_reads(self) -> FirstReads | None:
        """What the grid begins with of its projections; None where clusters share a key/value
        head, whose row groups they have in turns."""
        if self.sharers > 1:
            return None
        groups = self.shape.kv_heads * self.shape.sizes.rows // blocks.FRAGMENT
        count = min(self.stages * self.tile_bytes, self.device.bytes_in_flight)
        return first_reads(self.blocks, 1, groups, self.shape.hidden, count)

    def dsmem_bytes(self, seen: Sequence[int]) -> int:
        """Bytes between blocks of clusters in one launch, all clusters together, when the queries
        of each request see ``seen`` tokens, the new one included."""
        sizes = self.sizes
        if self.dataflow == "split_token":
            moved = dsmem.traffic(dsmem.split_token(sizes), self.cluster)
        else:
            scores, output = dsmem.split_head(sizes, 1)
            all_scores = replace(scores, values=self.heads * sum(seen))
            moved = dsmem.traffic((all_scores, output), self.cluster)
        return self.clusters * moved

    @property
    def tile_blocks(self) -> int:
        """Blocks of a row group of the projections in a tile."""
        return blocks.fragment_tile(-(-self.shape.hidden // blocks.FRAGMENT), self.tile_bytes)

    @property
    def lanes(self) -> int:
        """Lanes of a head that a block has."""
        return self.shape.head // (self.cluster if self.dataflow == "split_head" else 1)

    @property
    def out_blocks(self) -> int:
        """Blocks of a row group of the output projection."""
        return self.heads * self.lanes // blocks.FRAGMENT

    @property
    def out_joined(self) -> bool:
        """Whether all warps share a row group of the output projection, a long one, and join their
        sums; each has groups of its own otherwise."""
        most = min(self.tile_bytes // blocks.FRAGMENT_BYTES, _MOST_OWN_BLOCKS)
        return self.out_blocks > most

    @property
    def out_tile_blocks(self) -> int:
        """Blocks of the output projection in a tile."""
        if self.out_joined:
            return blocks.fragment_tile(self.out_blocks, self.tile_bytes)
        return self.tile_bytes // blocks.FRAGMENT_BYTES // self.out_blocks * self.out_blocks

    @property
    def tile_tokens(self) -> int:
        """Tokens in a tile, of keys and values or, split by heads, of either: a power of two."""
        of_both = 2 if self.dataflow == "split_head" else 1
        return blocks.tile_tokens(self.lanes, of_both * self.tile_bytes)

    @property
    def by_tiles(self) -> bool:
        """Whether attention is by tiles, all warps together."""
        return blocks.by_tiles(self.sizes, self.dataflow)

    @property
    def swizzled(self) -> bool:
        """Whether rows of the caches are swizzled by position, as all are that hold whole heads."""
        return self.dataflow == "split_token"

    @property
    def work_bytes(self) -> int:
        """Shared memory that attention by tiles works in."""
        return blocks.tile_work_bytes(self.heads, self.shape.head, self.tile_tokens)


def plan(
    shape: Attention,
    device: Device,
    cluster: int,
    dataflow: str = "split_token",
    context: int = 0,
    resident: int = 1,
    heads: int = 0,
) -> AttentionPlan:
    """The division of work for clusters of ``cluster`` blocks of ``device``; ``context`` is the
    most tokens that a query sees, which ``split_head`` keeps scores of; ``resident`` blocks share a
    multiprocessor, which shortens their rings; a cluster has ``heads`` query heads, zero for all
    that share a key/value head.

    Raises DoesNotFit.
    """
    group = shape.sizes.group
    heads = heads or group
    check_cluster(device, cluster)
    sizes = _sizes(shape, heads)
    misfits = clusters.shape_misfits(sizes) + page_misfits(shape.page)
    if group % heads or (dataflow == "split_head" and heads != group):
        misfits.append(f"{heads} of {group} query heads are no share by {dataflow}")
    if dataflow == "split_head" and shape.head_epsilons:
        misfits.append("heads are normed, whose lanes blocks of split_head share")
    misfits = misfits or clusters.division_misfits(sizes, cluster, dataflow)
    if misfits:
        raise DoesNotFit("; ".join(misfits))
    seen = min(context, shape.window) if shape.window else context
    memory = blocks.shared_memory(device, sizes, cluster, dataflow, seen, resident)
    made = arena(memory)
    return AttentionPlan(
        shape, device, cluster, dataflow, seen, resident, heads, memory.tile_bytes, memory.stages,
        made,
    )  # fmt: skip


def _sizes(shape: Attention, heads: int) -> dsmem.Attention:
    return replace(shape.sizes, kv_heads=shape.heads // heads)


def text(chosen: AttentionPlan, name: str, following: FirstReads | None = None) -> str:
    """The kernel called ``name``, which at its end prefetches what the ``following`` one reads
    first."""
    shape = chosen.shape
    return render(
        "meshc.backends.cuda.kernels.attention_block",
        _TEMPLATES[chosen.dataflow],
        kernel=name,
        resident=chosen.resident,
        following=following,
        cluster=chosen.cluster,
        dtype=shape.dtype,
        batch=shape.batch,
        hidden=shape.hidden,
        kv_heads=shape.kv_heads,
        group=chosen.heads,
        sharers=chosen.sharers,
        head=shape.head,
        page=shape.page,
        window=shape.window,
        tiled=chosen.by_tiles,
        work_bytes=chosen.work_bytes,
        bias=shape.bias,
        out_bias=shape.out_bias,
        partial=shape.partial,
        factor=optional_factor(shape.factor),
        head_epsilons=[literal(epsilon) for epsilon in shape.head_epsilons or ()],
        epsilon=literal(shape.epsilon),
        scale=literal(shape.scale * _LOG2E),
        tile_bytes=chosen.tile_bytes,
        tile_blocks=chosen.tile_blocks,
        tile_tokens=chosen.tile_tokens,
        out_tile_blocks=chosen.out_tile_blocks,
        out_joined=chosen.out_joined,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )
