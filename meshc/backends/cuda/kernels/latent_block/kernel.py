"""The latent attention block of a decode step as one kernel per layer (MLA, weights absorbed).

A cluster of blocks computes a group of query heads for all requests of a batch (ClusterFusion,
Algorithm 4, put right): blocks share the rows of the projections, then those of the absorbed
queries, the cached tokens, the rows of the values and the columns of the output. After each they
meet and read from their peers what they need. Each cluster makes the latent of the new token for
itself and reads every cached latent, rotary lanes and all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshc.analysis.cuda import blocks, dsmem
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import (
    DoesNotFit,
    arena,
    check_cluster,
    literal,
    page_misfits,
)
from meshc.backends.templates import render
from meshc.cost import latent
from meshc.devices import Device

_TEMPLATE = "latent_block.cu.jinja"
_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Latent:
    """What a latent attention block computes: ``sizes``, of which a cluster has ``group`` heads,
    epsilons of the norms of the input, of the latent and of the query's latent, if it has one,
    ``scale`` of scores. A ``partial`` one does not add the residual."""

    sizes: dsmem.LatentAttention
    dtype: str
    page: int
    epsilon: float
    latent_epsilon: float
    scale: float
    query_epsilon: float = 0.0
    partial: bool = False


@dataclass(frozen=True)
class LatentPlan:
    """How a cluster of ``cluster`` blocks does it."""

    shape: Latent
    cluster: int
    tile_bytes: int
    stages: int
    arena: Arena

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.shape.sizes.clusters * self.cluster

    @property
    def by_tiles(self) -> bool:
        """Whether caches are swizzled and attended by tiles on tensor cores."""
        return blocks.latent_by_tiles(self.shape.sizes)

    @property
    def dsmem_bytes(self) -> int:
        """Bytes between blocks of clusters in one launch, all clusters together."""
        exchanged = dsmem.split_token_latent(self.shape.sizes, self.cluster)
        return self.shape.sizes.clusters * dsmem.traffic(exchanged, self.cluster)


def plan(shape: Latent, device: Device, cluster: int) -> LatentPlan:
    """The division of work for clusters of ``cluster`` blocks of ``device``. Raises DoesNotFit."""
    check_cluster(device, cluster)
    misfits = latent.shape_misfits(shape.sizes, cluster) + page_misfits(shape.page)
    if misfits:
        raise DoesNotFit("; ".join(misfits))
    memory = blocks.latent_memory(device, shape.sizes, cluster)
    return LatentPlan(shape, cluster, memory.tile_bytes, memory.stages, arena(memory))


def text(chosen: LatentPlan, name: str) -> str:
    """The kernel called ``name``."""
    shape, sizes = chosen.shape, chosen.shape.sizes
    return render(
        "meshc.backends.cuda.kernels.latent_block",
        _TEMPLATE,
        kernel=name,
        resident=1,
        cluster=chosen.cluster,
        dtype=shape.dtype,
        batch=sizes.batch,
        hidden=sizes.hidden,
        group=sizes.group,
        latent=sizes.latent,
        rope=sizes.rope,
        query=sizes.query,
        value=sizes.value,
        page=shape.page,
        epsilon=literal(shape.epsilon),
        latent_epsilon=literal(shape.latent_epsilon),
        query_rank=sizes.query_rank,
        query_epsilon=literal(shape.query_epsilon),
        scale=literal(shape.scale * _LOG2E),
        tile_bytes=chosen.tile_bytes,
        round=sizes.round,
        tile_tokens=blocks.latent_tile_tokens(sizes, chosen.tile_bytes),
        stages=chosen.stages,
        tiled=chosen.by_tiles,
        partial=shape.partial,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )
