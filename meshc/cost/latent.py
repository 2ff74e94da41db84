"""Latent attention (MLA): heads and blocks of a cluster, chosen by predicted time.

The model is that of ``clusters.py`` with two differences. What attention takes from shared memory,
a line in each cycle, may take longer than the bytes from global memory. And every cluster reads
the projections to latents and all cached latents for itself. Global memory gives them once, L2 to
each cluster; no bandwidth of L2 is known, so all bytes that blocks read count at that of global
memory. Fewer clusters, with more heads each, read less, more clusters use more cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshc.analysis.cuda.blocks import (
    SHARED_LINE_BYTES,
    SharedMemory,
    latent_memory,
    latent_shared_bytes,
    waves,
)
from meshc.analysis.cuda.dsmem import Collective, LatentAttention, split_token_latent, traffic
from meshc.cost.clusters import (
    ELEMENT_BYTES,
    MOST_BATCH,
    busy_share,
    exposed_cost,
    memory_misfit,
    streamed_cost,
    together,
)
from meshc.cost.terms import Cost
from meshc.devices import Device

GROUPS = (1, 2, 4, 8, 16)
"""Query heads of a cluster."""
MOST_LATENT = 512
"""Values of a latent: two for each thread that computes."""


@dataclass(frozen=True)
class LatentChoice:
    """Clusters of ``cluster`` blocks with ``group`` heads each; predicted ``cost`` of one
    layer's step in seconds.

    ``dsmem_bytes`` are those between blocks in one launch, ``read_bytes`` those that blocks read of
    weights and caches, all clusters together.
    """

    group: int
    cluster: int
    memory: SharedMemory
    blocks: int
    waves: int
    dsmem_bytes: int
    read_bytes: int
    cost: Cost

    @property
    def seconds(self) -> float:
        """Predicted time of one layer's step."""
        return self.cost.total


def choose(
    device: Device, shape: LatentAttention, context: int, cluster: int = 0, heads: int = 0
) -> LatentChoice | None:
    """The fastest of :func:`candidates`, or None where nothing fits (see :func:`misfits`)."""
    found = candidates(device, shape, context, cluster, heads)
    return min(found, key=lambda c: (c.seconds, c.cluster), default=None)


def candidates(
    device: Device, shape: LatentAttention, context: int, cluster: int = 0, heads: int = 0
) -> list[LatentChoice]:
    """Everything that fits, with ``context`` cached tokens; zero leaves the blocks and the
    ``heads`` of a cluster open."""
    return [
        _candidate(device, one, context, size)
        for one in _grouped(shape, heads)
        for size in _sizes(device, cluster)
        if not misfits(device, one, size)
    ]


def misfits(device: Device, shape: LatentAttention, cluster: int) -> list[str]:
    """What keeps this division from being one kernel, in words."""
    found = shape_misfits(shape, cluster)
    if device.clusters is None or cluster not in device.clusters.sizes:
        found.append(f"{device.name} has no clusters of {cluster} blocks")
    if found:
        return found
    memory = latent_memory(device, shape, cluster)
    if not memory.fits:
        found.append(memory_misfit(memory))
    if not waves(device, 1, cluster, 1):
        found.append(f"no group of cores of {device.name} holds a cluster of {cluster} blocks")
    return found


def all_misfits(
    device: Device, shape: LatentAttention, cluster: int = 0, heads: int = 0
) -> list[str]:
    """What holds for every division, else what keeps the first ones from fitting."""
    each = [
        misfits(device, one, size)
        for one in _grouped(shape, heads)
        for size in _sizes(device, cluster)
    ]
    return together(each)


def shape_misfits(shape: LatentAttention, cluster: int) -> list[str]:
    """What keeps latent attention of this shape from being divided over ``cluster`` blocks."""
    found = []
    if shape.heads % shape.group or shape.group not in GROUPS:
        found.append(f"{shape.heads} heads do not divide into groups of {shape.group}")
    for count, what in (
        (shape.hidden, "values of the residual"),
        (shape.latent, "values of a latent"),
        (shape.rope, "rotary lanes"),
        (shape.query, "lanes of a query"),
        (shape.query_rank, "values of a query's latent"),
        (shape.value, "lanes of a value"),
    ):
        if count % 8:
            found.append(f"{count} {what} are no whole number of eights")
    if shape.latent > MOST_LATENT:
        found.append(f"registers: latents of {shape.latent} values, more than {MOST_LATENT}")
    if shape.batch > MOST_BATCH:
        found.append(f"a batch of {shape.batch} requests is more than {MOST_BATCH}")
    if cluster % shape.group and shape.group % cluster:
        found.append(f"{cluster} blocks share no {shape.group} heads evenly")
    for rows, what in (
        (shape.group * shape.latent, "rows of absorbed queries"),
        (shape.attended, "rows of values"),
    ):
        if rows % cluster:
            found.append(f"{rows} {what} do not divide over {cluster} blocks")
    return found


def read_bytes(shape: LatentAttention, context: int) -> int:
    """Bytes that blocks read: weights of heads once, projection to the latent and cached latents
    once for each cluster."""
    hidden, rank = shape.hidden, shape.latent
    of_head = shape.query_width * (shape.query + shape.rope) + hidden * shape.value
    of_head += rank * (shape.query + shape.value)
    shared = shape.shared_rows * hidden + shape.key * shape.batch * context
    return ELEMENT_BYTES * (shape.heads * of_head + shape.clusters * shared)


def collectives(shape: LatentAttention, cluster: int) -> tuple[Collective, ...]:
    """What blocks of a cluster exchange; nothing in a cluster of one."""
    return split_token_latent(shape, cluster) if cluster > 1 else ()


def step_cost(device: Device, shape: LatentAttention, context: int, cluster: int) -> Cost:
    """Predicted seconds of one layer's step. Raises ValueError where no cluster fits the device."""
    runs = waves(device, shape.clusters, cluster, 1)
    if not runs:
        raise ValueError(f"{device.name} holds no cluster of {cluster} blocks")
    exposed = exposed_cost(device, collectives(shape, cluster), cluster)
    memory = latent_memory(device, shape, cluster)
    whole = read_bytes(shape, context)
    attending = _attention_cost(device, shape, context, cluster)
    total = Cost()
    for clusters in runs:
        blocks = clusters * cluster
        count = whole * clusters / shape.clusters / busy_share(device, memory, blocks)
        streamed = streamed_cost(device, count, blocks)
        total += max(streamed, attending, key=lambda cost: cost.total) + exposed
    return total


def _attention_cost(device: Device, shape: LatentAttention, context: int, cluster: int) -> Cost:
    """Seconds in which a block reads what attention to its tokens takes from shared memory.
    Products with weights are faster than their bytes arrive."""
    tokens = shape.batch * context / cluster
    reads = tokens * latent_shared_bytes(shape) / SHARED_LINE_BYTES
    return Cost(compute=device.seconds(reads))


def _candidate(device: Device, shape: LatentAttention, context: int, cluster: int) -> LatentChoice:
    return LatentChoice(
        shape.group,
        cluster,
        latent_memory(device, shape, cluster),
        shape.clusters * cluster,
        len(waves(device, shape.clusters, cluster, 1)),
        shape.clusters * traffic(collectives(shape, cluster), cluster),
        read_bytes(shape, context),
        step_cost(device, shape, context, cluster),
    )


def _grouped(shape: LatentAttention, heads: int) -> list[LatentAttention]:
    """The shape with each number of heads in a cluster, or with ``heads``."""
    if heads:
        return [replace(shape, group=heads)]
    return [replace(shape, group=g) for g in GROUPS if shape.heads % g == 0]


def _sizes(device: Device, cluster: int) -> Sequence[int]:
    if cluster:
        return (cluster,)
    return device.clusters.sizes if device.clusters else ()
