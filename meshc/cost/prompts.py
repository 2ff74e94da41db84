"""Bytes that the kernels of a chunk of a prompt bring into shared memory.

Every weight of a product comes once. The values of the tokens, 16 bits each, come once for each
block of rows, whole eights of tokens at a time; cached keys and values once for each tile of
queries, up to the last one that it sees. The formulas count what is asked for; much of what comes
again is in L2. Look-ups, gains, biases and results, which no copy brings, are not counted.
"""

from __future__ import annotations

OWN_GROUPS = 4
"""Groups of 16 rows of a matrix that a block multiplies with all tokens."""
_VALUE_BYTES, _GROUP, _EIGHT = 2, 16, 8
_MOST_QUERIES, _LEAST_POSITIONS = 64, 16


def query_tiles(group: int) -> tuple[int, int]:
    """Query heads and positions of a block of attention, of ``group`` heads that share a key head:
    up to four heads, and 64 queries."""
    own = max(n for n in range(1, _MOST_QUERIES // _LEAST_POSITIONS + 1) if group % n == 0)
    return own, _MOST_QUERIES // own // _LEAST_POSITIONS * _LEAST_POSITIONS


def weight_bytes(rows: int, width: int) -> int:
    """Bytes of a matrix in whole blocks of 16 x 16 values."""
    return _filled(rows, _GROUP) * _filled(width, _GROUP) * _VALUE_BYTES


def product_bytes(rows: int, width: int, tokens: int) -> int:
    """Bytes of the product of a matrix with ``tokens``."""
    blocks = -(-rows // (_GROUP * OWN_GROUPS))
    columns = _filled(width, _GROUP) * _filled(tokens, _EIGHT) * _VALUE_BYTES
    return weight_bytes(rows, width) + blocks * columns


def attention_bytes(
    units: int,
    head: int,
    positions: int,
    cached: int,
    tokens: int,
    window: int = 0,
    tile_tokens: int = 1,
) -> int:
    """Bytes of keys and values of ``head`` lanes when each of ``units`` (a key head, or some
    of its query heads) has tiles of ``positions`` of ``tokens``, which follow ``cached`` others.
    With a ``window`` whole tiles of ``tile_tokens`` cached tokens in front of what the first of
    the positions sees are left out."""
    seen = 0
    for first in range(0, tokens, positions):
        unseen = max(cached + first + 1 - window, 0) if window else 0
        seen += cached + min(first + positions, tokens) - unseen // tile_tokens * tile_tokens
    return units * 2 * head * _VALUE_BYTES * seen


def _filled(count: int, of: int) -> int:
    return -(-count // of) * of
