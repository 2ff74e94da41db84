"""The logits of one token: the product of a vector with the table of the vocabulary, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES, WARPS, block_memory
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit, literal, optional_factor
from meshc.backends.templates import render
from meshc.devices import Device

_TILE_BYTES, _MOST_STAGES, _LEAST_STAGES = 32_768, 6, 2
_COLUMNS = 2
"""A vector is two columns: the rounded values and what rounding left."""


@dataclass(frozen=True)
class Head:
    """``rows`` x ``width`` times a vector, and ``factor``: the last of as many as a number in
    memory says, which is ``normed`` with ``epsilon``, or the only one."""

    width: int
    rows: int
    dtype: str
    normed: bool
    epsilon: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True)
class HeadPlan:
    """How ``blocks`` blocks do it, with a ring of ``stages`` tiles of ``tile_blocks`` fragments."""

    shape: Head
    blocks: int
    tile_blocks: int
    stages: int
    arena: Arena


def plan(shape: Head, device: Device) -> HeadPlan:
    """The division of work over the multiprocessors of ``device``: a block leaves room for a second
    one beside it, with the largest tiles, down to halves, of which enough are on their way to keep
    memory busy; all memory where there is no such division. Raises DoesNotFit."""
    if shape.width % 8:
        raise DoesNotFit(f"rows of {shape.width} values are no whole number of eights")
    groups, own = -(-shape.rows // FRAGMENT), -(-shape.width // FRAGMENT)
    beside = (
        ("BARRIERS", 16 * _MOST_STAGES + 32, ""),
        ("PARTS", 8 * WARPS * FRAGMENT, "sums of the warps"),
        ("COLUMNS", 2 * _COLUMNS * FRAGMENT * own, "inputs"),
    )
    taken = sum(-(-count // 128) * 128 for _, count, _ in beside)
    fewest = -(-own * FRAGMENT_BYTES // _TILE_BYTES)
    found = []
    for resident in (2, 1):
        room = block_memory(device, resident) - taken
        for tiles in range(fewest, 2 * fewest + 1):
            tile_blocks = -(-own // tiles)
            stages = min(_MOST_STAGES, room // (tile_blocks * FRAGMENT_BYTES))
            flying = (stages - 1) * tile_blocks * FRAGMENT_BYTES
            busy = flying >= device.bytes_in_flight or stages == _MOST_STAGES
            found.append((busy, tile_blocks, stages))
    _, tile_blocks, stages = next((one for one in found if one[0]), found[-1 - fewest])
    if stages < _LEAST_STAGES:
        raise DoesNotFit(f"{taken} bytes of a vector and sums leave no room for a ring")
    arena = Arena()
    arena.add("RING", stages * tile_blocks * FRAGMENT_BYTES)
    for part in beside:
        arena.add(*part)
    return HeadPlan(shape, max(min(device.cores, groups), 1), tile_blocks, stages, arena)


def text(chosen: HeadPlan, name: str) -> str:
    """The kernel called ``name``."""
    shape = chosen.shape
    return render(
        "meshc.backends.cuda.kernels.head",
        "head.cu.jinja",
        kernel=name,
        dtype=shape.dtype,
        width=shape.width,
        rows=shape.rows,
        normed=shape.normed,
        factor=optional_factor(shape.factor),
        epsilon=literal(shape.epsilon),
        tile_blocks=chosen.tile_blocks,
        stages=chosen.stages,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )
