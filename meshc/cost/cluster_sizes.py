"""The kernel of an attention block that ClusterFusion publishes: predicted time by cluster size.

Clusters of blocks have a key/value head each, and share its work by SplitToken (Algorithm 3). One
step of one layer takes, wave after wave of the clusters that run at once:

* bytes of weights and cached tokens, at what kernels reach of the bandwidth of global memory times
  the share of cores that have a block. A wave that is not full has its bytes at a smaller share,
  which is the tail of a launch;
* what no copy hides: global memory answering at the start and at the end, two cluster barriers,
  and for each collective a barrier, a round trip and its bytes at the bandwidth of that cluster
  size (Figure 5; between known sizes linear in the logarithm).

Arithmetic is not counted. Bandwidth between blocks, latencies and groups of cores are device
numbers. The hop is that of clusters of two; larger ones take longer by the bytes of more peers.
Clusters are taken to start and end together in a wave. What meshc emits itself is predicted from
its program of tasks (:mod:`meshc.cost.tasks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from meshc.analysis.cuda.blocks import FRAGMENT, waves
from meshc.cost.terms import Cost
from meshc.devices import Device

ELEMENT_BYTES = 2
"""Bytes of a weight or cached value: f16 or bf16."""
VALUE_BYTES = 4
"""Bytes of a value on its way between blocks: partial sums are f32."""
_COLLECTIVES = 2


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


def traffic(shape: Attention, cluster: int) -> int:
    """Bytes between the blocks of a cluster: a ClusterGather of queries, key and value, of which
    each block has a share, and a ClusterReduce of weighted values, weights and highest scores. The
    sums are relative to each block's own highest scores, by which readers scale them; the printed
    algorithm has a reduction of its own for the maxima. Every block reads what each other has."""
    gathered = shape.batch * shape.rows * (cluster - 1)
    reduced = shape.batch * (shape.attended + 2 * shape.group) * (cluster - 1) * cluster
    return VALUE_BYTES * (gathered + reduced)


def attention_bytes(shape: Attention, context: int) -> int:
    """Bytes that one layer's step reads: weights once, caches of all requests."""
    weights = shape.kv_heads * shape.hidden * (shape.rows + shape.attended)
    cached = 2 * shape.batch * context * shape.kv_heads * shape.head
    return ELEMENT_BYTES * (weights + cached)


def step_cost(
    device: Device, shape: Attention, context: int, cluster: int, resident: int = 1
) -> Cost:
    """Predicted seconds of one layer's step, ``resident`` blocks on a core, with rings that keep
    global memory busy. Raises ValueError where no cluster fits the device."""
    runs = waves(device, shape.kv_heads, cluster, resident)
    if not runs:
        raise ValueError(f"{device.name} holds no cluster of {cluster} blocks")
    exposed = _exposed_cost(device, traffic(shape, cluster), cluster)
    whole = attention_bytes(shape, context)
    total = Cost()
    for clusters in runs:
        count = whole * clusters / shape.kv_heads
        total += _streamed_cost(device, count, clusters * cluster) + exposed
    return total


def rows_cost(device: Device, matrices: Iterable[tuple[int, int]]) -> Cost:
    """Predicted seconds of products of up to 16 vectors with matrices of given width and rows, one
    kernel each, with a block on every core."""
    total = Cost()
    for width, rows in matrices:
        blocks = min(device.cores, -(-rows // FRAGMENT))
        total += _streamed_cost(device, ELEMENT_BYTES * width * rows, blocks)
        total += _exposed_cost(device, 0, 1)
    return total


def _streamed_cost(device: Device, count: float, blocks: int) -> Cost:
    """Seconds to stream ``count`` bytes into ``blocks`` blocks."""
    rate = device.read_bytes_per_second * min(1.0, blocks / device.cores)
    return Cost(transfer=count / rate)


def _exposed_cost(device: Device, moved: int, cluster: int) -> Cost:
    """Seconds that no copy of tiles hides, in each wave: memory and barriers that are waited for,
    round trips of collectives, and the bytes that are ``moved`` in a cluster."""
    hop = device.link.hop_cycles
    barriers = 2 * hop if cluster > 1 else 0.0
    waits = device.seconds(2 * device.global_latency_cycles + barriers)
    if cluster == 1:
        return Cost(waits=waits)
    seconds = moved / cluster / (link_bytes_per_second(device, cluster) / device.cores)
    return Cost(transfer=seconds, stages=device.seconds(2 * hop * _COLLECTIVES), waits=waits)


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
