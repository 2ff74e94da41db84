"""Dataflow and cluster size of a fused attention block: predicted time, and the choice by it.

One step of one layer takes, wave after wave of the clusters that run at once:

* bytes of weights and cached tokens, at what kernels reach of the bandwidth of global memory times
  the share of cores that have a block. A wave that is not full has its bytes at a smaller share,
  which is the tail of a launch. Rings from which fewer bytes are on their way than keep that memory
  busy get as much less of it (Little's law);
* what no copy hides: global memory answering at the start and at the end, two cluster barriers,
  and for each collective a barrier, a round trip and its bytes at the bandwidth of that cluster
  size (ClusterFusion, Figure 5; between known sizes linear in the logarithm).

Arithmetic is not counted. Products of 16 vectors on tensor cores take at most a thirteenth of the
time in which their weights arrive, multiply-adds of eight query heads on CUDA cores three fifths of
that of their cached tokens; what else those threads issue is not modelled.

Bandwidth between blocks, latencies and groups of cores are device numbers. The hop is that of
clusters of two; larger ones take longer by the bytes of more peers. Clusters are taken to start and
end together in a wave. All figures are predictions that serve to compare; a GPU measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2

from meshc.analysis.cuda.blocks import (
    FRAGMENT,
    MOST_GROUP,
    MOST_LANE_GROUP,
    SharedMemory,
    most_resident,
    rows_plan,
    shared_memory,
    waves,
)
from meshc.analysis.cuda.dsmem import (
    Attention,
    Collective,
    LatentAttention,
    split_head,
    split_token,
    split_token_latent,
    traffic,
)
from meshc.cost.terms import Cost
from meshc.devices import Device

__all__ = [
    "Attention",
    "Choice",
    "Collective",
    "LatentAttention",
    "SharedMemory",
    "attention_bytes",
    "candidates",
    "choose",
    "collectives",
    "division_misfits",
    "link_bytes_per_second",
    "misfits",
    "rows_cost",
    "rows_plan",
    "shape_misfits",
    "shared_memory",
    "split_token_latent",
    "step_cost",
    "traffic",
]

DATAFLOWS = ("split_token", "split_head")
HEADS = (64, 96, 128, 256)
MOST_BATCH = 16
MOST_RESIDENT = 2
ELEMENT_BYTES = 2
"""Of weights and cached values: f16 or bf16."""


@dataclass(frozen=True)
class Choice:
    """How an attention block is computed: blocks of a cluster, blocks that share a core
    (``resident``), query heads of a cluster, and the predicted ``cost`` of one layer's step in
    seconds.

    ``dsmem_bytes`` are those between blocks in one launch, all clusters together.
    """

    dataflow: str
    cluster: int
    resident: int
    heads: int
    memory: SharedMemory
    blocks: int
    waves: int
    dsmem_bytes: int
    cost: Cost

    @property
    def seconds(self) -> float:
        """Predicted time of one layer's step."""
        return self.cost.total


def choose(
    device: Device,
    shape: Attention,
    context: int,
    cluster: int = 0,
    dataflow: str = "",
    resident: int = 0,
    heads: int = 0,
) -> Choice | None:
    """The fastest of :func:`candidates`, or None where nothing fits (see :func:`misfits`)."""
    found = candidates(device, shape, context, cluster, dataflow, resident, heads)
    return min(found, key=lambda c: (c.seconds, c.cluster), default=None)


def candidates(
    device: Device,
    shape: Attention,
    context: int,
    cluster: int = 0,
    dataflow: str = "",
    resident: int = 0,
    heads: int = 0,
) -> list[Choice]:
    """Everything that fits, with ``context`` cached tokens; zero and empty leave a choice open.

    One block has nothing to split by head, so only ``split_token`` has clusters of one.
    """
    residents = [resident] if resident else range(1, MOST_RESIDENT + 1)
    found = []
    for part, size, flow in divisions(device, shape, cluster, dataflow, heads):
        if not misfits(device, part, size, flow, context):
            made = (_candidate(device, part, context, size, flow, r) for r in residents)
            found += [choice for choice in made if choice is not None]
    return found


def divisions(
    device: Device, shape: Attention, cluster: int = 0, dataflow: str = "", heads: int = 0
) -> list[tuple[Attention, int, str]]:
    """The ways to divide attention among clusters: the part of one cluster, the number of its
    blocks, and the dataflow by which they share the work.

    Clusters have all ``heads`` of a key/value head or, by ``split_token``, a share of them. Those
    that share one each compute its keys and values and read all its cache, so what they take is
    that of a model with as many key/value heads as clusters.
    """
    wanted = [heads] if heads else range(max(shape.group, 1), 0, -1)
    shares = [n for n in wanted if shape.heads % shape.kv_heads == 0 == shape.group % n]
    parts = [replace(shape, kv_heads=shape.heads // n) for n in shares]
    return [
        (part, size, flow)
        for part in parts or ([] if heads else [shape])
        for size in ([cluster] if cluster else _sizes(device))
        for flow in ([dataflow] if dataflow else DATAFLOWS)
        if flow == "split_token" or part == shape
    ]


def misfits(
    device: Device, shape: Attention, cluster: int, dataflow: str, context: int
) -> list[str]:
    """What keeps an attention block of this shape from being one kernel, in words."""
    found = shape_misfits(shape)
    if cluster not in _sizes(device):
        sizes = ", ".join(map(str, _sizes(device)))
        found.append(f"clusters of {cluster} blocks: {device.name} has {sizes}")
    if found:
        return found
    if dataflow == "split_head" and cluster == 1:
        found.append("one block has no lanes of a head to share")
    found += division_misfits(shape, cluster, dataflow)
    memory = shared_memory(device, shape, cluster, dataflow, context)
    if not memory.fits:
        found.append(memory_misfit(memory))
    if not waves(device, 1, cluster, 1):
        found.append(f"no group of cores of {device.name} holds a cluster of {cluster} blocks")
    return found


def together(each: Sequence[Sequence[str]]) -> list[str]:
    """What keeps all of several choices from fitting, or else the first reasons of any."""
    reasons = list(dict.fromkeys(reason for found in each for reason in found))
    common = [reason for reason in reasons if all(reason in found for found in each)]
    return common or reasons[:3]


def memory_misfit(memory: SharedMemory) -> str:
    """Words for shared memory that does not suffice."""
    largest = max(memory.parts, key=lambda part: part.bytes)
    return (
        f"shared memory: {memory.bytes} bytes wanted with the shortest ring, {memory.limit} in a "
        f"block ({largest.name} takes {largest.bytes})"
    )


def shape_misfits(shape: Attention) -> list[str]:
    """What keeps any attention block of this shape from being a kernel, in words."""
    found = []
    if shape.head not in HEADS:
        known = ", ".join(map(str, HEADS))
        found.append(f"a head of {shape.head} values is none of {known}")
    if shape.heads % shape.kv_heads:
        found.append(f"{shape.heads} query heads do not divide over {shape.kv_heads}")
    elif shape.group > MOST_GROUP:
        found.append(
            f"registers: {shape.group} query heads share a key head, sums of more than "
            f"{MOST_GROUP} do not stay in the registers of a block"
        )
    if shape.hidden % 8:
        found.append(f"a hidden size of {shape.hidden} is no whole number of eights")
    if shape.batch > MOST_BATCH:
        found.append(f"a batch of {shape.batch} requests is more than {MOST_BATCH}")
    return found


def division_misfits(shape: Attention, cluster: int, dataflow: str) -> list[str]:
    """What keeps a block of this shape from being divided over ``cluster`` blocks, in words."""
    if dataflow == "split_token":
        return []
    found = []
    if shape.hidden % (4 * cluster):
        found.append(f"{shape.hidden} output columns over {cluster} blocks are no whole fours")
    if shape.group > MOST_LANE_GROUP:
        found.append(
            f"registers: {shape.group} query heads share a key head, sums of more than "
            f"{MOST_LANE_GROUP} do not stay in the registers of a thread"
        )
    if shape.head % (16 * cluster):
        found.append(f"{shape.head} lanes of a head over {cluster} blocks are no whole sixteens")
    return found


def _candidate(
    device: Device, shape: Attention, context: int, cluster: int, dataflow: str, resident: int
) -> Choice | None:
    if resident > max(1, most_resident(device, shape)):
        return None
    memory = shared_memory(device, shape, cluster, dataflow, context, resident)
    if not memory.fits:
        return None
    moved = traffic(collectives(shape, cluster, dataflow, context), cluster)
    return Choice(
        dataflow,
        cluster,
        resident,
        shape.group,
        memory,
        shape.kv_heads * cluster,
        len(waves(device, shape.kv_heads, cluster, resident)),
        shape.kv_heads * moved,
        step_cost(device, shape, context, cluster, dataflow, resident, memory),
    )


def collectives(
    shape: Attention, cluster: int, dataflow: str, context: int
) -> tuple[Collective, ...]:
    """What blocks of a cluster exchange; nothing in a cluster of one."""
    if cluster == 1:
        return ()
    return split_head(shape, context) if dataflow == "split_head" else split_token(shape)


def attention_bytes(shape: Attention, context: int) -> int:
    """Bytes that one layer's step reads: weights once, caches of all requests; all of it again by
    each further cluster of a key/value head, as if from global memory."""
    weights = shape.kv_heads * shape.hidden * (shape.rows + shape.attended)
    cached = 2 * shape.batch * context * shape.kv_heads * shape.head
    return ELEMENT_BYTES * (weights + cached)


def step_cost(
    device: Device,
    shape: Attention,
    context: int,
    cluster: int,
    dataflow: str = "split_token",
    resident: int = 1,
    memory: SharedMemory | None = None,
) -> Cost:
    """Predicted seconds of one layer's step, with rings that keep global memory busy or those of
    the plan ``memory``. Raises ValueError where no cluster fits the device."""
    runs = waves(device, shape.kv_heads, cluster, resident)
    if not runs:
        raise ValueError(f"{device.name} holds no cluster of {cluster} blocks")
    exposed = exposed_cost(device, collectives(shape, cluster, dataflow, context), cluster)
    whole = attention_bytes(shape, context)
    total = Cost()
    for clusters in runs:
        blocks = clusters * cluster
        count = whole * clusters / shape.kv_heads / busy_share(device, memory, blocks)
        total += streamed_cost(device, count, blocks) + exposed
    return total


def streamed_cost(device: Device, count: float, blocks: int) -> Cost:
    """Seconds to stream ``count`` bytes into ``blocks`` blocks."""
    rate = device.read_bytes_per_second * min(1.0, blocks / device.cores)
    return Cost(transfer=count / rate)


def busy_share(device: Device, memory: SharedMemory | None, blocks: int) -> float:
    """The share of the bandwidth of global memory that the rings of a core's blocks ask for, where
    ``blocks`` run at once: evenly over the cores, so two of a core only where all have one."""
    if memory is None or not device.bytes_in_flight:
        return 1.0
    on_core = max(1.0, blocks / device.cores)
    return min(1.0, on_core * memory.bytes_in_flight / device.bytes_in_flight)


def exposed_cost(device: Device, exchanged: Sequence[Collective], cluster: int) -> Cost:
    """Seconds that no copy of tiles hides, in each wave: memory and barriers that are waited for,
    round trips of collectives, and their bytes."""
    hop = device.link.hop_cycles
    barriers = 2 * hop if cluster > 1 else 0.0
    waits = device.seconds(2 * device.global_latency_cycles + barriers)
    if cluster == 1:
        return Cost(waits=waits)
    one_block = traffic(exchanged, cluster) / cluster
    moved = one_block / (link_bytes_per_second(device, cluster) / device.cores)
    return Cost(transfer=moved, stages=device.seconds(2 * hop * len(exchanged)), waits=waits)


def link_bytes_per_second(device: Device, cluster: int) -> float:
    """Bytes per second between the blocks of clusters of ``cluster`` blocks, of all cores together.

    Linear in the logarithm of the size between known sizes, constant beyond them.
    """
    points = device.clusters.bytes_per_second if device.clusters else ()
    below = [p for p in points if p[0] <= cluster]
    above = [p for p in points if p[0] >= cluster]
    if not below or not above:
        return (below or above)[-1 if below else 0][1]
    (low, slow), (high, fast) = below[-1], above[0]
    if low == high:
        return slow
    return slow + (fast - slow) * log2(cluster / low) / log2(high / low)


def rows_cost(device: Device, matrices: Iterable[tuple[int, int]]) -> Cost:
    """Predicted seconds of products of up to 16 vectors with matrices of given width and rows, one
    kernel each, with a block on every core."""
    total = Cost()
    for width, rows in matrices:
        blocks = min(device.cores, -(-rows // FRAGMENT))
        total += streamed_cost(device, ELEMENT_BYTES * width * rows, blocks)
        total += exposed_cost(device, (), 1)
    return total


def _sizes(device: Device) -> tuple[int, ...]:
    return device.clusters.sizes if device.clusters else ()
