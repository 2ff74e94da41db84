"""Cycles of the parts of distributed operations: tile products, messages, overlapped steps.

A local tile product costs its multiply-adds at the device's rate, plus ``vector_cycles`` for each
vector instruction and ``scalar_cycles`` for each scalar operand of its inner loops. A message of
``words`` over ``hops`` costs ``hops * alpha + words / width + beta``: alpha is the link's
``hop_cycles``, beta its ``route_cycles`` (receive, combine, send again). Computing and
messages of one step overlap; each step adds ``step_cycles``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from meshc.cost.terms import Cost
from meshc.devices import Device

_EXPONENTIAL = 12
"""Scalar operations of one, assumed: its range, a polynomial of degree 6, its scale."""


@dataclass(frozen=True)
class Tile:
    """A local product ``[m, k] @ [k, n]`` on one core, of ``bytes_each`` bytes per element."""

    m: int
    k: int
    n: int
    dtype: str = "f16"
    bytes_each: int = 2

    def words(self, rows: int, columns: int, device: Device) -> int:
        """Link words of a ``rows x columns`` block."""
        return ceil(rows * columns * self.bytes_each / device.link.word_bytes)

    def moved(self, device: Device) -> int:
        """Link words of the larger factor."""
        return max(self.words(self.m, self.k, device), self.words(self.k, self.n, device))


def message(words: float, hops: float, device: Device) -> Cost:
    """Until ``words`` sent at once have arrived ``hops`` away."""
    link = device.link
    travel = hops * link.hop_cycles + words / link.words_per_cycle
    return Cost(transfer=travel, stages=link.route_cycles)


def shifts(count: int, words: float, hops: float, device: Device) -> Cost:
    """``count`` steps that move ``words`` each, of which nothing hides."""
    return (message(words, hops, device) + Cost(overhead=device.step_cycles)) * count


def product(tile: Tile, device: Device) -> Cost:
    """One local tile product: one vector instruction per element of the second factor."""
    macs = tile.m * tile.k * tile.n / device.macs(tile.dtype)
    vectors = tile.k * tile.n * device.vector_cycles
    return Cost(compute=macs + vectors + tile.m * tile.k * device.scalar_cycles)


def merge(elements: int, count: int, dtype: str, device: Device) -> Cost:
    """A core's ``count`` softmaxes, of ``elements`` in all, merged with those of another core: two
    vectors are scaled, then added. Scales are exponentials of scalars, two for each softmax, which
    a core computes as a polynomial; a kernel of a whole vector hides more of that."""
    passes = 3
    scales = 2 * count * _EXPONENTIAL * device.scalar_cycles
    return Cost(
        passes * elements / device.lanes(dtype) + scales, overhead=passes * device.op_cycles
    )


def overlapped(work: Cost, moved: Cost, steps: int, moves: int, device: Device) -> Cost:
    """``steps`` times ``work``, during ``moves`` of which something travels: each step takes the
    longer of the two."""
    exposed = max(0.0, moved.total - work.total)
    return work * steps + Cost(waits=exposed) * moves + Cost(overhead=device.step_cycles) * steps


def cyclic_shift(tile: Tile, steps: int, device: Device, hops: int = 2) -> Cost:
    """MeshGEMM and Cannon: ``steps`` products while both factors move to the next core, after the
    last of which nothing moves.

    ``hops`` is the longest step: 2 on an interleaved ring (WaferLLM section 5), ``N - 1`` for
    Cannon in natural order.
    """
    moved = message(tile.moved(device), hops, device)
    return overlapped(product(tile, device), moved, steps, steps - 1, device)
