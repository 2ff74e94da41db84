"""How long a block computes at tiles and tasks, and how its ring is divided, by a device's numbers.

Statements have costs by kernel and form. A product multiplies weights by 8 or 16 columns of 16-bit
values on tensor cores: up to four vectors take two columns each, their rounded values and what
rounding left. A single query head is attended on CUDA cores; several that share a key head on
tensor cores, or, with ``grouped_on_cores``, on CUDA cores as well. Rows of a fragment that a task
has no rows for are wasted, or, with ``packed``, hold further parts of the width, as far as there
are columns for these: an emitter could do that, none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from meshc.cost.tasks.blocks import Memory, Ring, Tiles
from meshc.cost.tasks.work import FRAGMENT_ROWS, Piece, TaskWork
from meshc.devices import Device
from meshc.devices.keys import points

NS = 1e-9
BESIDE_RING = 2048
"""Bytes of a block's memory that barriers and sums of its warps take."""
MOST_TILES = 16
"""Places that a ring has at most."""


@dataclass(frozen=True)
class TileTimes:
    """Times on ``device``; see the module for the forms."""

    device: Device
    grouped_on_cores: bool = False
    packed: bool = False

    @property
    def rate(self) -> float:
        """Bytes per second from memory at best."""
        return self.device.real("stream_bytes_per_second")

    def memory(self, flying: int) -> Memory:
        """What blocks share, with ``flying`` tiles on their way to each: what is missing to the
        best rate falls exponentially with these bytes."""
        device = self.device
        missing = exp(-flying * self.tile / device.real("filling_bytes"))
        return Memory(
            rate=self.rate * (1 - missing),
            shared_rate=device.real("shared_bytes_per_second"),
            latency=device.real("stream_latency_ns") * NS,
            signal=device.real("signal_ns") * NS,
        )

    @property
    def tile(self) -> int:
        """Bytes of a tile."""
        return self.device.whole("tile_bytes")

    def ring(self, held: int) -> Ring:
        """The ring that the memory of a block has room for beside ``held`` bytes of columns. It has
        at least a tile more than are on their way, whether there is room or not: see
        :meth:`fits`."""
        flying = max(1, self.device.bytes_in_flight // self.tile)
        return Ring(max(min(self._room(held), MOST_TILES), flying + 1), flying)

    def fits(self, held: int) -> bool:
        """Whether the memory of a block has room for ``held`` bytes of columns and a ring."""
        return self._room(held) > self.device.bytes_in_flight // self.tile

    def _room(self, held: int) -> int:
        return (self.device.whole("memory_bytes") - held - BESIDE_RING) // self.tile

    def ready(self, read: float, brings: bool) -> float:
        """Seconds until a block has made of the bytes that it read at a meeting what its tasks
        take; ``brings``: whether these bring tiles, which they multiply."""
        device = self.device
        first = device.real("ready_ns") if brings else 0.0
        return (first + device.real("prepare_ns") * read / 1024) * NS

    def tiles(self, work: TaskWork) -> Tiles:
        """The tiles of a task: bytes, and seconds that it computes; its last tile has what it does
        at its end."""
        found: list[tuple[float, float]] = []
        for piece in work.pieces:
            seconds = self.piece(piece) / self.tile
            full, rest = divmod(piece.bytes, self.tile)
            found += [(self.tile, seconds * self.tile)] * full
            found += [(rest, seconds * rest)] if rest else []
        if found:
            size, seconds = found[-1]
            found[-1] = (size, seconds + self.end(work.pieces[-1]))
        return found

    def piece(self, piece: Piece) -> float:
        """Seconds for a whole tile of what ``piece`` brings."""
        if piece.kind == "product":
            columns = 2 * piece.rows if piece.rows <= 4 else piece.rows
            times = self._points("product_tile_ns")
            parts = max(8 // columns, 1) if self.packed else 1
            return _at(times, columns) * NS / min(1.0, piece.filled * parts)
        if piece.kind == "attention":
            if self._on_cores(piece.rows):
                return _at(self._points("attention_tile_ns"), piece.rows) * NS
            passes = -(-piece.rows // FRAGMENT_ROWS)
            return passes * self.device.real("grouped_attention_tile_ns") * NS
        return 0.0

    def end(self, piece: Piece) -> float:
        """Seconds at the end of a task that brought ``piece`` last."""
        if piece.kind == "product":
            return self.device.real("product_task_ns") * NS
        if piece.kind == "attention":
            return _at(self._points("attention_task_ns"), piece.rows) * NS
        return 0.0

    def _on_cores(self, heads: int) -> bool:
        return heads == 1 or self.grouped_on_cores

    def _points(self, name: str) -> Sequence[tuple[int, float]]:
        return [*dict(points(str(self.device.value(name)))).items()]


def _at(known: Sequence[tuple[int, float]], size: int) -> float:
    """A number at ``size``: linear between known sizes and beyond the last two, constant below the
    first one."""
    if size <= known[0][0] or len(known) == 1:
        return known[0][1]
    above = next((n for n, (x, _) in enumerate(known) if x >= size), len(known) - 1)
    (x, low), (y, high) = known[above - 1], known[above]
    return max(low + (high - low) * (size - x) / (y - x), 0.0)
