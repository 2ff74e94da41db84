"""What kernels with a ring of tiles share: its size, and what does not fit."""

from __future__ import annotations

from meshc.backends.cuda.kernels.arena import Arena, most_bytes

WARPS = 8
WORKERS = 32 * WARPS
THREADS = WORKERS + 32
TILE_BYTES = 32_768
MOST_STAGES = 6
LEAST_STAGES = 2
MOST_SUMS = 256  # of a tile's rows with the requests of a batch


class DoesNotFit(Exception):
    """Why a kernel of this shape cannot be made, in words."""


def barrier_bytes() -> int:
    """Bytes of the barriers of a ring and of two more."""
    return 16 * MOST_STAGES + 16


def with_ring(fixed: Arena, tile_bytes: int, resident: int = 1) -> tuple[Arena, int]:
    """Shared memory with a ring in front of ``fixed``, and the tiles that it has, where
    ``resident`` blocks share a multiprocessor.

    Raises DoesNotFit.
    """
    limit = most_bytes(resident)
    stages = min(MOST_STAGES, (limit - fixed.bytes) // tile_bytes)
    if stages < LEAST_STAGES:
        raise DoesNotFit(
            f"{fixed.bytes} bytes of vectors and sums leave no room for {LEAST_STAGES} tiles of "
            f"{tile_bytes} bytes in {limit} bytes of shared memory"
        )
    arena = Arena()
    arena.add("RING", stages * tile_bytes)
    for part in fixed.parts:
        arena.add(part.name, part.bytes, part.note)
    return arena, stages


def rounded(count: int, unit: int = 128) -> int:
    """``count`` up to the next multiple of ``unit``."""
    return -(-count // unit) * unit


def literal(value: float) -> str:
    """``value`` as a constant of type float."""
    return f"{value!r}f"
