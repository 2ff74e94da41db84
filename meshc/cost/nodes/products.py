"""Products on the multiprocessors of a GPU: tiles, the waves that they take, seconds.

A block computes a tile of the result and has a multiprocessor for itself, so tiles run in waves of
as many as there are multiprocessors; the last wave takes as long as a full one (TokenWeave, Figure
8). A small tile loads more operands for each multiply-add than a large one. Of the tiles that
libraries have, the one that is fastest for the shape is taken, as libraries do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from meshc.devices import Device


class Tile(NamedTuple):
    """Rows and columns of the result that one block computes."""

    rows: int
    columns: int


TILES = (Tile(128, 256), Tile(128, 128), Tile(64, 256), Tile(64, 128), Tile(64, 64))
"""Tiles of products on tensor cores, the largest first."""


class Product(NamedTuple):
    """A product [rows, inner] x [inner, columns]."""

    rows: int
    columns: int
    inner: int


def tiles_of(shape: Product, tile: Tile) -> int:
    """How many tiles the result has, those at its edges included."""
    return ceil(shape.rows / tile.rows) * ceil(shape.columns / tile.columns)


def waves(shape: Product, tile: Tile, multiprocessors: int) -> int:
    """How often all multiprocessors take a tile."""
    return ceil(tiles_of(shape, tile) / multiprocessors)


@dataclass(frozen=True)
class ProductRates:
    """What a GPU does: ``macs`` multiply-adds a second at its peak on all of ``multiprocessors``;
    ``operand_macs``, those that pass in the time that a value of an operand takes to arrive;
    ``bytes`` a second that kernels read; ``start``, seconds from a kernel to the next."""

    macs: float
    multiprocessors: int
    operand_macs: float
    bytes: float
    start: float

    @classmethod
    def of(cls, device: Device, dtype: str) -> ProductRates:
        """Those of ``device`` for elements of ``dtype``. Raises ``device-number``."""
        return cls(
            macs=device.real(f"{dtype}_macs_per_cycle") * device.clock_hz,
            multiprocessors=device.whole("multiprocessors"),
            operand_macs=device.real("operand_macs"),
            bytes=device.read_bytes_per_second,
            start=device.real("kernel_seconds"),
        )

    def tile_seconds(self, tile: Tile, inner: int) -> float:
        """Seconds of one tile."""
        macs = tile.rows * tile.columns * inner
        loads = self.operand_macs * (1 / tile.rows + 1 / tile.columns)
        return macs * (1 + loads) * self.multiprocessors / self.macs

    def best_tile(self, shape: Product, multiprocessors: int) -> Tile:
        """The tile by which ``shape`` is fastest; of several, the largest."""
        return min(
            TILES,
            key=lambda t: waves(shape, t, multiprocessors) * self.tile_seconds(t, shape.inner),
        )

    def seconds(self, shape: Product, multiprocessors: int, size: float) -> float:
        """Seconds of ``shape`` on so many multiprocessors: whole waves, or reading of operands and
        writing of the result, ``size`` bytes in all, where that takes longer."""
        tile = self.best_tile(shape, multiprocessors)
        computing = waves(shape, tile, multiprocessors) * self.tile_seconds(tile, shape.inner)
        return self.start + max(computing, size / self.bytes)
