"""Products of a step's vectors with a matrix, row by row: feed-forward, logits, lookups.

One kernel for all of them, which differ in what happens before (RMSNorm or nothing) and behind the
product (gated activation, residual sum or nothing). Blocks have runs of rows; there is no cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.analysis import blocks
from meshc.backends.cuda.kernels.arena import Arena, most_bytes
from meshc.backends.cuda.kernels.tiles import DoesNotFit, arena, literal
from meshc.backends.templates import render

TITLES = {
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
    activated, residual (added to sums, which are zeroed) or stored. ``activation`` is silu, gelu or
    gelu_tanh, its approximation.
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


@dataclass(frozen=True)
class RowsPlan:
    """How blocks of a grid do it."""

    shape: RowsProduct
    tile_rows: int
    tile_bytes: int
    stages: int
    arena: Arena

    def blocks(self, cores: int) -> int:
        """Blocks of the grid on a device of ``cores`` multiprocessors."""
        return min(cores, -(-self.shape.rows // self.tile_rows))


def plan(shape: RowsProduct) -> RowsPlan:
    """The division of work. Raises DoesNotFit."""
    if shape.width % 8:
        raise DoesNotFit(f"rows of {shape.width} values are no whole number of eights")
    unit = 2 if shape.output == "gated" else 1
    if shape.rows % unit:
        raise DoesNotFit(f"{shape.rows} rows are no pairs of gates and values")
    gated = shape.output == "gated"
    tile_rows = blocks.product_tile_rows(shape.width, shape.batch, gated, shape.rows)
    normed = shape.input == "normed"
    memory = blocks.product_memory(shape.width, shape.batch, tile_rows, normed, most_bytes())
    return RowsPlan(shape, tile_rows, memory.tile_bytes, memory.stages, arena(memory))


def text(chosen: RowsPlan, name: str) -> str:
    """The kernel called ``name``."""
    shape = chosen.shape
    return render(
        "meshc.backends.cuda",
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
        epsilon=literal(shape.epsilon),
        unroll=4 if chosen.tile_rows >= 4 else chosen.tile_rows,
        tile_rows=chosen.tile_rows,
        tile_bytes=chosen.tile_bytes,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )


def embed_text(name: str, hidden: int, vocabulary: int, dtype: str) -> str:
    """The kernel called ``name`` that looks up embeddings."""
    return render(
        "meshc.backends.cuda",
        "embed.cu.jinja",
        kernel=name,
        dtype=dtype,
        hidden=hidden,
        vocabulary=vocabulary,
    )


def pack_gated(gates: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Weights twice [width, features] as [2 features, width], gates and values in turn."""
    both = np.stack([gates.T, values.T], axis=1)
    return np.ascontiguousarray(both.reshape(-1, gates.shape[0]))
