"""Cost of distributed products by each algorithm, in PLMR terms (WaferLLM section 5.1).

A core of a rows x columns mesh holds tiles [m, k] and [k, n] in lcm(rows, columns) chunks. Per
step, one chunk of either moves:

- cyclic_shift: two hops on interleaved axes, hidden behind the product of the chunk; before,
  operands that the host has not skewed turn by at most half the ring.
- cannon: the same in natural order, so that the message around the end goes N - 1 hops.
- summa: a panel of either operand goes to a whole line, N - 1 hops, both ways out of its owner's
  one link to the router; hidden behind the product of the panels before.
- allgather: N - 1 steps first, then one product, with room for N tiles of both operands.

Predictions used to choose; ``meshc estimate`` counts the programs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm

from meshc.analysis.cost import link_cost
from meshc.devices import Device

ALGORITHMS = ("cyclic_shift", "cannon", "summa", "allgather")


@dataclass(frozen=True)
class Tiles:
    """One product: the mesh, rows of the left operand, lanes of the contraction and columns of the
    right operands on a core, bytes per element, and which operands the cores must skew."""

    rows: int
    columns: int
    m: int
    k: int
    n: int
    bytes_each: int
    turn_left: bool
    turn_right: bool

    @property
    def steps(self) -> int:
        """Chunks of the contraction."""
        return lcm(self.rows, self.columns)

    @property
    def chunk(self) -> int:
        """Lanes of the contraction in a chunk."""
        return ceil(self.k * self.columns / self.steps)

    @property
    def side(self) -> int:
        """Cores along the longer axis."""
        return max(self.rows, self.columns)


@dataclass(frozen=True)
class ProductCost:
    """One algorithm: predicted cycles, longest way of a step, colors and bytes of operands."""

    algo: str
    cycles: float
    hops: int
    stages: int
    colors: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.algo} {self.cycles:.0f} cycles, {self.hops} hops and {self.stages} stages "
            f"a step, {self.colors} colors, {self.bytes} bytes"
        )


def product_costs(tiles: Tiles, device: Device) -> dict[str, ProductCost]:
    """Costs of all algorithms by name."""
    link, word = link_cost(device), device.link.word_bytes
    left, right = (
        ceil(extent * tiles.chunk * tiles.bytes_each / word) * link.word_cycles
        for extent in (tiles.m, tiles.n)
    )
    work = _work(tiles, device)
    small = min(2, tiles.side - 1)

    def message(words: float, hops: int) -> float:
        return hops * link.hop_cycles + words + link.route_cycles

    def shifting(hops: int) -> float:
        once = max(work, message(max(left, right), hops))
        turns = tiles.steps // 2 if tiles.turn_left or tiles.turn_right else 0
        align = turns * (message(max(left, right), hops) + link.step_cycles)
        return tiles.steps * (once + link.step_cycles) + align

    hand = message(2 * max(left, right), tiles.side - 1)
    gather = (tiles.side - 1) * (message(max(left, right), small) + link.step_cycles)
    cycles = {
        "cyclic_shift": shifting(small),
        "cannon": shifting(tiles.side - 1),
        "summa": hand + tiles.steps * (max(work, hand) + link.step_cycles),
        "allgather": gather + tiles.steps * work,
    }
    ways = {
        "cyclic_shift": (small, 1),
        "cannon": (tiles.side - 1, 1),
        "summa": (tiles.side - 1, 1),
        "allgather": (small, 1),
    }
    return {
        algo: ProductCost(algo, cycles[algo], *ways[algo], *_room(tiles, algo))
        for algo in ALGORITHMS
    }


def _work(tiles: Tiles, device: Device) -> float:
    """Cycles of the product of two chunks."""
    dtype = "f32" if tiles.bytes_each == 4 else "f16"
    macs = tiles.m * tiles.chunk * tiles.n / device.macs(dtype)
    vectors = tiles.chunk * tiles.n * device.vector_cycles
    return macs + vectors + tiles.m * tiles.chunk * device.scalar_cycles


def _room(tiles: Tiles, algo: str) -> tuple[int, int]:
    """Colors of the channels of both axes, and bytes of the operands on a core."""
    axes = (tiles.rows > 1) + (tiles.columns > 1)
    chunk = tiles.chunk * tiles.bytes_each
    own = (tiles.m + tiles.n) * chunk
    held = tiles.m * (tiles.steps // tiles.columns) + tiles.n * (tiles.steps // tiles.rows)
    if algo == "allgather":
        return 3 * axes, own * tiles.steps
    if algo == "summa":
        return 2 * axes, held * chunk + 2 * own
    return 3 * axes * (1 + (tiles.turn_left or tiles.turn_right)), held * chunk + own
