"""Products of a step's vectors with a matrix, row by row: feed-forward, logits.

One kernel for all of them, which differ in what happens before (RMSNorm or nothing) and behind the
product (gated activation, residual sum or nothing). Blocks, or clusters of blocks that share the
width, have runs of row groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.cuda import blocks
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import (
    DoesNotFit,
    FirstReads,
    arena,
    first_reads,
    literal,
    optional_factor,
)
from meshc.backends.templates import render
from meshc.devices import Device

TITLES = {
    ("plain", "gated"): "both inner products of a feed-forward layer, gated activation",
    ("plain", "activated"): "the inner product of a feed-forward layer, its activation",
    ("normed", "gated"): "RMSNorm, both inner products of a feed-forward layer, gated activation",
    ("normed", "activated"): "RMSNorm, the inner product of a feed-forward layer, its activation",
    ("plain", "residual"): "the outer product of a feed-forward layer and its residual sum",
    ("normed", "stored"): "RMSNorm and the product with a matrix",
    ("plain", "stored"): "the product with a matrix",
}


@dataclass(frozen=True)
class RowsProduct:
    """``rows`` x ``width`` times ``batch`` vectors.

    ``input`` is normed or plain. ``output`` is gated (``activation`` of even rows times odd ones),
    activated, residual (added to sums, which are zeroed) or stored; what is added or stored is
    times ``factor``. ``activation`` is silu, gelu_erf or gelu_tanh, its approximation. With
    ``last`` the vector is the last of as many as a number in memory says.
    """

    batch: int
    width: int
    rows: int
    dtype: str
    input: str = "plain"
    output: str = "stored"
    epsilon: float = 0.0
    activation: str = "silu"
    bias: bool = False
    factor: float = 1.0
    last: bool = False


@dataclass(frozen=True)
class RowsPlan:
    """How the blocks of a grid on ``device`` do it: ``cluster`` of them share the width."""

    shape: RowsProduct
    device: Device
    cluster: int
    tile_bytes: int
    stages: int
    arena: Arena
    dsmem_bytes: int

    @property
    def groups(self) -> int:
        """Groups of 16 rows."""
        return -(-self.shape.rows // blocks.FRAGMENT)

    @property
    def blocks(self) -> int:
        """Blocks of the grid. Larger clusters lie within domains of 16 cores or 18."""
        cores = self.device.cores
        if self.cluster > 2:
            cores = max(cores // 16 * 16, self.cluster)
        return max(min(cores // self.cluster, self.groups), 1) * self.cluster

    def first_reads(self) -> FirstReads | None:
        """What the grid begins with of its matrix."""
        units = self.blocks // self.cluster
        count = min(self.stages * self.tile_bytes, self.device.bytes_in_flight)
        return first_reads(units, self.cluster, self.groups, self.shape.width, count)


def plan(shape: RowsProduct, device: Device, cluster: int = 0) -> RowsPlan:
    """The division of work over the multiprocessors of ``device``, by clusters of the size that
    :func:`blocks.product_cluster` chooses unless one is given. Raises DoesNotFit."""
    if shape.width % 8:
        raise DoesNotFit(f"rows of {shape.width} values are no whole number of eights")
    if shape.last and shape.batch > 1:
        raise DoesNotFit(f"{shape.batch} vectors, of which the last one is asked for")
    if shape.output == "gated" and shape.rows % 2:
        raise DoesNotFit(f"{shape.rows} rows are no pairs of gates and values")
    sizes = shape.width, shape.rows, shape.batch
    chosen = cluster or blocks.product_cluster(device, *sizes)
    found = blocks.product_plan(device, *sizes, chosen)
    tile_bytes, stages = found.memory.tile_bytes, found.memory.stages
    return RowsPlan(
        shape, device, chosen, tile_bytes, stages, arena(found.memory), found.dsmem_bytes
    )


def text(chosen: RowsPlan, name: str, following: FirstReads | None = None) -> str:
    """The kernel called ``name``, which at its end prefetches what the ``following`` one reads
    first."""
    shape = chosen.shape
    return render(
        "meshc.backends.cuda.kernels.rows_product",
        "rows_product.cu.jinja",
        kernel=name,
        title=TITLES[shape.input, shape.output],
        dtype=shape.dtype,
        batch=shape.batch,
        width=shape.width,
        rows=shape.rows,
        input=shape.input,
        output=shape.output,
        activation=shape.activation,
        bias=shape.bias,
        last=shape.last,
        factor=optional_factor(shape.factor),
        epsilon=literal(shape.epsilon),
        cluster=chosen.cluster,
        round=blocks.ROUND,
        following=following,
        tile_blocks=chosen.tile_bytes // blocks.FRAGMENT_BYTES,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )
