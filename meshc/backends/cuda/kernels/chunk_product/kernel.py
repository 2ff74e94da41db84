"""Norms and products of all tokens of a chunk of a prompt, each row of a matrix read once.

The matrices are those of decode steps, in the order of tensor cores, so a program holds one copy of
its weights; tokens' values lie as the columns of a product, [width / 16, tokens, 16].
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES, block_memory
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit, literal, optional_factor
from meshc.backends.templates import render
from meshc.cost.prompts import ProductTile, product_tile
from meshc.devices import Device

_PACKAGE = "meshc.backends.cuda.kernels.chunk_product"
_WARPS, _EIGHT = 8, 8
_TILE_BYTES, _WARPGROUP_BYTES = 40_960, 24_576
_COLUMNS_ALIGNED = 256
_MOST_STEPS, _LEAST_STAGES = 8, 2
_MOST_STAGES, _WARPGROUP_STAGES = 6, 8
_TITLES = {
    "stored": "the product with a matrix",
    "added": "the product with a matrix and the residual sum",
    "part": "a rank's part of the product with a matrix",
    "gated": "both inner products of a feed-forward layer and the gated activation",
    "activated": "the inner product of a feed-forward layer and its activation",
}


@dataclass(frozen=True)
class ChunkProduct:
    """``rows`` x ``width`` times up to ``tokens`` columns. ``output`` is stored, added to what was
    before, gated or activated; a part of a sum over ranks is rounded and stored. What is stored or
    added is times ``factor``."""

    tokens: int
    width: int
    rows: int
    dtype: str
    output: str = "stored"
    activation: str = "silu"
    bias: bool = False
    factor: float = 1.0


@dataclass(frozen=True)
class ChunkPlan:
    """A block has ``tile`` and goes through the width by tiles of ``steps`` blocks; ``arena`` has a
    ring of ``stages`` of them. Warpgroups multiply, whose columns the blocks of a cluster share, or
    each warp for itself."""

    shape: ChunkProduct
    tile: ProductTile
    steps: int
    stages: int
    arena: Arena

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.tile.blocks(self.shape.rows, self.shape.tokens)

    def copied_bytes(self, tokens: int) -> int:
        """Bytes that a chunk of ``tokens`` brings."""
        return self.tile.copied_bytes(self.shape.rows, self.shape.width, tokens)


def plan(shape: ChunkProduct, device: Device) -> ChunkPlan:
    """The tiles of a product on ``device``. Raises DoesNotFit."""
    blocks = -(-shape.width // FRAGMENT)
    if shape.tokens % _EIGHT:
        raise DoesNotFit(f"chunks of {shape.tokens} tokens are no whole number of eights")
    if shape.output == "gated" and shape.rows % 2:
        raise DoesNotFit(f"{shape.rows} rows are no pairs of gates and values")
    tile = product_tile(device, shape.rows, shape.tokens)
    step_bytes = tile.groups * FRAGMENT_BYTES + tile.columns * 2 * FRAGMENT
    most_bytes = _WARPGROUP_BYTES if tile.warpgroups else _TILE_BYTES
    steps = max(1, min(most_bytes // step_bytes, _MOST_STEPS, blocks))
    if tile.warpgroups:  # whose tiles are whole
        steps = next(n for n in range(steps, 0, -1) if blocks % n == 0)
    made = Arena()
    most_stages = _WARPGROUP_STAGES if tile.warpgroups else _MOST_STAGES
    made.add("BARRIERS", _COLUMNS_ALIGNED if tile.warpgroups else 16 * most_stages)
    stages = min(most_stages, (block_memory(device) - made.bytes) // (steps * step_bytes))
    if stages < _LEAST_STAGES:
        raise DoesNotFit(f"tiles of {shape.tokens} tokens leave no room for a ring")
    made.add("RING", stages * steps * step_bytes)
    return ChunkPlan(shape, tile, steps, stages, made)


def text(chosen: ChunkPlan, name: str) -> str:
    """The product called ``name``."""
    shape, tile = chosen.shape, chosen.tile
    return render(
        _PACKAGE,
        "warpgroup_product.cu.jinja" if tile.warpgroups else "chunk_product.cu.jinja",
        kernel=name,
        title=_TITLES[shape.output],
        dtype=shape.dtype,
        tokens=shape.tokens,
        width=shape.width,
        rows=shape.rows,
        output=shape.output,
        activation=shape.activation,
        bias=shape.bias,
        factor=optional_factor(shape.factor),
        own_groups=tile.groups,
        columns=tile.columns,
        sizes=tile.sizes,
        cluster=tile.cluster,
        steps=chosen.steps,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )


def norm_blocks(tokens: int) -> int:
    """Blocks of the grid of a norm."""
    return -(-tokens // _WARPS)


def norm_text(name: str, tokens: int, width: int, dtype: str, epsilon: float) -> str:
    """The norm called ``name``. Raises DoesNotFit."""
    if width % _EIGHT:
        raise DoesNotFit(f"rows of {width} values are no whole number of eights")
    return render(
        _PACKAGE,
        "chunk_norm.cu.jinja",
        kernel=name,
        dtype=dtype,
        tokens=tokens,
        width=width,
        epsilon=literal(epsilon),
    )
