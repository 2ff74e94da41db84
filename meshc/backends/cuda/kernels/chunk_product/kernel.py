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
from meshc.cost.prompts import OWN_GROUPS, product_bytes
from meshc.devices import Device

_PACKAGE = "meshc.backends.cuda.kernels.chunk_product"
_WARPS, _EIGHT = 8, 8
_TILE_BYTES = 40_960
_MOST_STEPS, _MOST_STAGES, _LEAST_STAGES = 8, 6, 2
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
    """Tiles of ``steps`` blocks of the width; ``arena`` has a ring of ``stages`` of them."""

    shape: ChunkProduct
    steps: int
    stages: int
    arena: Arena

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return -(-self.shape.rows // (FRAGMENT * OWN_GROUPS))

    def copied_bytes(self, tokens: int) -> int:
        """Bytes that a chunk of ``tokens`` brings: each weight once, and columns for each block."""
        return product_bytes(self.shape.rows, self.shape.width, tokens)


def plan(shape: ChunkProduct, device: Device) -> ChunkPlan:
    """The tiles of a product on ``device``. Raises DoesNotFit."""
    blocks = -(-shape.width // FRAGMENT)
    if shape.tokens % _EIGHT:
        raise DoesNotFit(f"chunks of {shape.tokens} tokens are no whole number of eights")
    if shape.output == "gated" and shape.rows % 2:
        raise DoesNotFit(f"{shape.rows} rows are no pairs of gates and values")
    step_bytes = OWN_GROUPS * FRAGMENT_BYTES + shape.tokens * 2 * FRAGMENT
    steps = max(1, min(_TILE_BYTES // step_bytes, _MOST_STEPS, blocks))
    made = Arena()
    barriers = 16 * _MOST_STAGES
    made.add("BARRIERS", barriers)
    stages = min(_MOST_STAGES, (block_memory(device) - made.bytes) // (steps * step_bytes))
    if stages < _LEAST_STAGES:
        raise DoesNotFit(f"tiles of {shape.tokens} tokens leave no room for a ring")
    made.add("RING", stages * steps * step_bytes)
    return ChunkPlan(shape, steps, stages, made)


def text(chosen: ChunkPlan, name: str) -> str:
    """The product called ``name``."""
    shape = chosen.shape
    return render(
        _PACKAGE,
        "chunk_product.cu.jinja",
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
        own_groups=OWN_GROUPS,
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
