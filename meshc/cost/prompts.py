"""Bytes that the kernels of a chunk of a prompt bring into shared memory.

The weights of a product come once for each block of tokens, and the values of the tokens, 16 bits
each, once for each cluster of blocks of rows; cached keys and values once for each tile of
queries, up to the last one that it sees. The formulas count what is asked for; much of what comes
again is in L2. Look-ups, gains, biases and results, which no copy brings, are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshc.devices import Device

_WARPGROUPS = "sm_90a"
_WARP_GROUPS, _WARPGROUP_GROUPS = 4, 8
_COLUMNS = 256, 128, 64
_MOST, _MOST_TILED = 512, 2048
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


def most_chunk(device: Device) -> int:
    """The most tokens that kernels on ``device`` read at once."""
    return _MOST_TILED if _has_warpgroups(device) else _MOST


def whole_chunk(device: Device, wanted: int, capacity: int) -> int:
    """Tokens of a chunk of ``wanted`` on ``device`` where caches hold ``capacity``: no more than
    these in whole tiles, the smallest of which holds all that smaller ones do, or in eights."""
    tiled = _has_warpgroups(device) and wanted % _COLUMNS[-1] == 0
    unit = next((n for n in _COLUMNS[::-1] if n >= capacity), _COLUMNS[0]) if tiled else _EIGHT
    return min(wanted, _filled(capacity, unit))


@dataclass(frozen=True)
class ProductTile:
    """What a block of a product has: ``groups`` of 16 rows of the matrix, and ``columns`` tokens.
    ``cluster`` blocks of other rows bring the values of the same tokens together. ``warpgroups`` of
    four warps multiply, or each warp alone, whole eights of all tokens."""

    groups: int
    columns: int
    cluster: int = 1
    warpgroups: bool = False

    def row_blocks(self, rows: int) -> int:
        """Blocks with the same tokens."""
        return -(-rows // (_GROUP * self.groups))

    def blocks(self, rows: int, tokens: int) -> int:
        """Blocks of the grid of a product of ``rows`` with up to ``tokens``."""
        return self.row_blocks(rows) * -(-tokens // self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens that warpgroups multiply: of the last tile as few of these as hold its own."""
        return tuple(n for n in _COLUMNS[::-1] if n <= self.columns)

    def multiplied(self, tokens: int) -> int:
        """Tokens that are multiplied for ``tokens``."""
        if not self.warpgroups:
            return _filled(tokens, _EIGHT)
        whole, left = divmod(tokens, self.columns)
        return whole * self.columns + (left and next(n for n in self.sizes if n >= left))

    def copied_bytes(self, rows: int, width: int, tokens: int) -> int:
        """Bytes that the product of ``rows`` x ``width`` weights with ``tokens`` brings."""
        values = _filled(width, _GROUP) * self.multiplied(tokens) * _VALUE_BYTES
        weights = weight_bytes(rows, width) * -(-tokens // self.columns)
        return weights + self.row_blocks(rows) // self.cluster * values


def product_tile(device: Device, rows: int, tokens: int) -> ProductTile:
    """What a block of a product of ``rows`` with chunks of up to ``tokens`` has on ``device``:
    warpgroups multiply where the device has such and the tokens are whole tiles."""
    columns = next((n for n in _COLUMNS if tokens % n == 0), 0)
    if not _has_warpgroups(device) or not columns:
        return ProductTile(_WARP_GROUPS, tokens)
    alone = ProductTile(_WARPGROUP_GROUPS, columns, 1, True)
    return replace(alone, cluster=1 if alone.row_blocks(rows) % 2 else 2)


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


def _has_warpgroups(device: Device) -> bool:
    return "cuda_arch" in device.facts and device.cuda_arch == _WARPGROUPS


def _filled(count: int, of: int) -> int:
    return -(-count // of) * of
