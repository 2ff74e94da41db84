"""A decode step of one request as one kernel, whose blocks stay on their multiprocessors.

Kernels that follow each other leave memory idle while one ends and the next one begins: on an H200
about 7 us each, and a step of Llama-2-7B has 98 of them. Here one warp of each block brings
everything that a step reads through one ring, in order; blocks meet at a counter in global memory
where all need what all have computed. The division of work is that of flash decoding (several
blocks share the tokens of a key/value head, a later phase joins them), not that of clusters: on an
H200 only 30 clusters of 4 blocks have a multiprocessor for each block.

What is on its way is limited (:attr:`PersistentPlan.flying`): what has been asked for beyond what
keeps memory busy only delays meetings, which wait behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshc.analysis.cuda import blocks
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.attention_block.kernel import Attention, AttentionPlan
from meshc.backends.cuda.kernels.embed.kernel import LookUp
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.kernels.tiles import DoesNotFit, literal, optional_factor
from meshc.backends.templates import render
from meshc.devices import Device

TILE_BYTES = 16384
_MOST_GROUP = 4
_LANES = (64, 128, 256)
_MOST_STAGES = 16
_LOG2E = math.log2(math.e)
_ROWS = blocks.FRAGMENT


@dataclass(frozen=True)
class PersistentStep:
    """What a step computes: the look-up of its token, ``layers`` of an attention block and the
    products of a feed-forward layer, then the logits. ``capacity_pages`` are the pages of the cache
    of its request."""

    layers: int
    look_up: LookUp
    attention: AttentionPlan
    inner: RowsProduct
    outer: RowsProduct
    head: RowsProduct
    capacity_pages: int


@dataclass(frozen=True)
class PersistentPlan:
    """How ``blocks`` blocks do it, one on each multiprocessor; any number gives the same bits.

    Up to ``splits`` of them share the tokens of a key/value head. Of the ``stages`` tiles of a ring
    ``flying`` are on their way at once, one more than keep memory busy. Measured on an H200 (three
    tiles) with Llama-2-7B, 1024 cached tokens: 3353, 3372, 3417, 3448 and 3464 us a step for 3, 4,
    5, 6 and all 11 tiles; with 16384 cached tokens 4 were the best.
    """

    shape: PersistentStep
    blocks: int
    splits: int
    stages: int
    flying: int
    arena: Arena

    @property
    def record(self) -> int:
        """Floats that a block leaves of the attention of a query head: sums, the highest score,
        the weight and what fills them up to a whole number of fours."""
        return self.shape.attention.shape.head + 4


def plan(shape: PersistentStep, device: Device) -> PersistentPlan:
    """The division of work over the multiprocessors of ``device``. Raises DoesNotFit for a step
    that the kernel does not compute."""
    _check(shape)
    attention = shape.attention.shape
    groups = attention.kv_heads * attention.sizes.rows, shape.inner.rows, shape.head.rows
    count = max(min(device.cores, max(groups) // _ROWS), 1)
    splits = max(count // attention.kv_heads, 1)
    parts = _parts(shape)
    room = blocks.block_memory(device) - sum(-(-size // 128) * 128 for _, size, _ in parts)
    stages = min(room // TILE_BYTES, _MOST_STAGES)
    flying = 1 + -(-device.bytes_in_flight // TILE_BYTES)
    if stages <= flying:
        raise DoesNotFit(
            f"its vectors leave {max(room, 0)} bytes of shared memory for tiles, fewer than "
            f"{(flying + 1) * TILE_BYTES}"
        )
    arena = Arena()
    arena.add("RING", stages * TILE_BYTES)
    for name, size, note in parts:
        made = arena.add(name, size, note)
    at = made.at
    for name, size, note in _attention_parts(attention):
        at = arena.add(name, size, note, at).end
    return PersistentPlan(shape, count, splits, stages, flying, arena)


def _parts(shape: PersistentStep) -> list[tuple[str, int, str]]:
    """Shared memory beside the ring; the sums of attention lie in that of columns."""
    attention = shape.attention.shape
    width = max(shape.outer.width, attention.hidden, attention.heads * attention.head)
    attended = sum(-(-size // 128) * 128 for _, size, _ in _attention_parts(attention))
    columns = 2 * blocks.fragment_columns(1) * width
    return [
        ("BARRIERS", 16 * _MOST_STAGES, ""),
        ("PARTS", 2 * 4 * blocks.WARPS * _ROWS, "sums of the warps"),
        ("COLUMNS", max(columns, attended), "inputs"),
    ]


def _attention_parts(attention: Attention) -> list[tuple[str, int, str]]:
    """What attention works in (library/mc_group_attention.cuh)."""
    heads = blocks.WARPS * attention.sizes.group
    return [
        ("JOINED", 4 * heads * attention.head, "attention sums of the warps"),
        ("STATISTICS", 8 * heads, "their highest scores and weights"),
        ("ASKED", 2 * blocks.FRAGMENT * attention.head, "queries as fragments"),
    ]


def _check(shape: PersistentStep) -> None:
    attention, inner, outer, head = (
        shape.attention.shape, shape.inner, shape.outer, shape.head,
    )  # fmt: skip
    if attention.batch > 1:
        raise DoesNotFit(f"it is for one request, and a step has {attention.batch}")
    if not shape.attention.swizzled:
        raise DoesNotFit("caches are divided over the lanes of heads (--dataflow split_head)")
    for what, there in _extras(attention, inner, outer, head).items():
        if there:
            raise DoesNotFit(f"the model has {what}")
    group, lanes = attention.sizes.group, attention.head
    if group > _MOST_GROUP:
        raise DoesNotFit(f"{group} query heads share a key/value head, more than {_MOST_GROUP}")
    if lanes not in _LANES:
        known = ", ".join(map(str, _LANES))
        raise DoesNotFit(f"heads have {lanes} lanes, which is none of {known}")
    for what, width in (("hidden", attention.hidden), ("features", outer.width)):
        if width % _ROWS:
            raise DoesNotFit(f"{width} {what} values are no whole number of sixteens")
    if shape.attention.out_blocks * blocks.FRAGMENT_BYTES > TILE_BYTES:
        raise DoesNotFit(f"{group} heads of {lanes} lanes are more than a tile of the output takes")
    runs = TILE_BYTES // (4 * lanes) // min(attention.page, TILE_BYTES // (4 * lanes))
    if 2 * runs > 32:
        raise DoesNotFit(f"pages of {attention.page} token(s) are too short (--page 16)")


def _extras(
    attention: Attention, inner: RowsProduct, outer: RowsProduct, head: RowsProduct
) -> dict[str, bool]:
    """What the kernel has no code for, in words, and whether it is there."""
    biases = (attention.bias, attention.out_bias, inner.bias, outer.bias, head.bias)
    factors = (attention.factor, outer.factor, head.factor)
    return {
        "biases": any(biases),
        "norms of queries and keys": attention.head_epsilons is not None,
        "a window of attention": attention.window > 0,
        "factors of what is added to the stream or of logits": any(f != 1.0 for f in factors),
        "parts that ranks have": attention.partial,
        "norms in other places": (inner.input, outer.input, head.input)
        != ("normed", "plain", "normed"),
    }


def text(chosen: PersistentPlan, name: str) -> str:
    """The kernel called ``name``."""
    shape, attention = chosen.shape, chosen.shape.attention.shape
    activations = render(
        "meshc.backends.cuda.kernels.rows_product",
        "activations.jinja",
        activation=shape.inner.activation,
    )
    return render(
        "meshc.backends.cuda.kernels.persistent_step",
        "persistent_step.cu.jinja",
        kernel=name,
        dtype=attention.dtype,
        layers=shape.layers,
        hidden=attention.hidden,
        kv_heads=attention.kv_heads,
        group=attention.sizes.group,
        head=attention.head,
        features=shape.outer.width,
        inner_rows=shape.inner.rows,
        gated=shape.inner.output == "gated",
        words=shape.look_up.words,
        factor=optional_factor(shape.look_up.factor),
        vocabulary=shape.head.rows,
        page=attention.page,
        pages=shape.capacity_pages,
        attention_epsilon=literal(attention.epsilon),
        ffn_epsilon=literal(shape.inner.epsilon),
        head_epsilon=literal(shape.head.epsilon),
        scale=literal(attention.scale * _LOG2E),
        splits=chosen.splits,
        out_parts=shape.attention.clusters,
        out_blocks=shape.attention.out_blocks,
        tile_blocks=TILE_BYTES // blocks.FRAGMENT_BYTES,
        flying=chosen.flying,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
        activations=activations,
    )
