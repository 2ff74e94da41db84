"""Causal attention of a chunk of a prompt by tiles of queries, with a running maximum.

Two kernels. The first norms heads where the model does, rotates queries and keys, and puts keys and
values into the caches of decode steps. The second has a block for each tile of at least 16
positions of a key head's queries, and reads all tokens of the request from the caches, or those
tiles of them that a window of the first position reaches (FlashAttention-2, Algorithm 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshc.analysis.cuda.blocks import block_memory
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit, literal, page_misfits
from meshc.backends.templates import render
from meshc.cost.prompts import attention_bytes, query_tiles
from meshc.devices import Device

_PACKAGE = "meshc.backends.cuda.kernels.chunk_attention"
_HEADS = (64, 96, 128, 256)
_MOST_STAGES, _LEAST_STAGES = 4, 2
_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Attention:
    """What an attention layer computes. ``window`` 0 means all tokens; ``scale`` is of scores;
    ``bias`` is that of queries, keys and values, ``head_epsilons`` of the norms of each head's
    queries and keys, where they are normed. A ``partial`` one does not add the residual. What is
    added is times ``factor``, a bias included."""

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
    def group(self) -> int:
        """Query heads of a key/value head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of the projections to the queries, key and value of a key/value head."""
        return (self.group + 2) * self.head


@dataclass(frozen=True)
class ChunkAttentionPlan:
    """Tiles of ``positions`` of ``own`` query heads, over tiles of ``tile_tokens`` tokens."""

    shape: Attention
    tokens: int
    own: int
    positions: int
    tile_tokens: int
    stages: int
    work_bytes: int
    arena: Arena

    @property
    def units(self) -> int:
        """Blocks of the same positions."""
        return self.shape.heads // self.own

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.units * -(-self.tokens // self.positions)

    def copied_bytes(self, cached: int, tokens: int) -> int:
        """Bytes of keys and values that a chunk of ``tokens`` behind ``cached`` brings."""
        return attention_bytes(
            self.units, self.shape.head, self.positions, cached, tokens, self.shape.window,
            self.tile_tokens,
        )  # fmt: skip


def plan(shape: Attention, device: Device, tokens: int) -> ChunkAttentionPlan:
    """The tiles of chunks of up to ``tokens`` on ``device``. Raises DoesNotFit."""
    misfits = page_misfits(shape.page)
    if shape.heads % shape.kv_heads:
        misfits.append(f"{shape.heads} query heads do not divide over {shape.kv_heads}")
    if shape.head not in _HEADS:
        misfits.append(f"heads of {shape.head} lanes are none of {', '.join(map(str, _HEADS))}")
    if misfits:
        raise DoesNotFit("; ".join(misfits))
    head = shape.head
    own, positions = query_tiles(shape.group)
    queries, tile_tokens = positions * own, 64 if head <= 128 else 32
    # Scores of up to two parts of the lanes, weights, factors: TileAttention::WORK_BYTES.
    parts = 64 // tile_tokens
    work = queries * (parts * (tile_tokens + 8) * 4 + tile_tokens * 2 + 4)
    made = Arena()
    for name, count in (
        ("BARRIERS", 16 * _MOST_STAGES),
        ("ASKED", queries * head * 2),
        ("WORK", work),
        ("ATTENDED", queries * head * 4),
        ("MOST", 2 * queries * 4),
    ):
        made.add(name, count)
    tile_bytes = 4 * tile_tokens * head
    stages = min(_MOST_STAGES, (block_memory(device) - made.bytes) // tile_bytes)
    if stages < _LEAST_STAGES:
        raise DoesNotFit(f"{made.bytes} bytes of queries and sums leave no room for a ring")
    made.add("RING", stages * tile_bytes)
    return ChunkAttentionPlan(shape, tokens, own, positions, tile_tokens, stages, work, made)


def text(chosen: ChunkAttentionPlan, name: str) -> str:
    """The attention called ``name``."""
    shape = chosen.shape
    return render(
        _PACKAGE,
        "chunk_attention.cu.jinja",
        kernel=name,
        dtype=shape.dtype,
        tokens=chosen.tokens,
        kv_heads=shape.kv_heads,
        group=shape.group,
        own=chosen.own,
        head=shape.head,
        page=shape.page,
        window=shape.window,
        scale=literal(shape.scale * _LOG2E),
        positions=chosen.positions,
        tile_tokens=chosen.tile_tokens,
        stages=chosen.stages,
        work_bytes=chosen.work_bytes,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )


def heads_text(chosen: ChunkAttentionPlan, name: str) -> str:
    """The kernel called ``name`` that rotates and fills the caches, a block for each token."""
    shape = chosen.shape
    return render(
        _PACKAGE,
        "chunk_heads.cu.jinja",
        kernel=name,
        dtype=shape.dtype,
        kv_heads=shape.kv_heads,
        group=shape.group,
        head=shape.head,
        page=shape.page,
        head_epsilons=[literal(epsilon) for epsilon in shape.head_epsilons or ()],
    )
