"""Cost of distributed products by each algorithm, in PLMR terms (WaferLLM section 5.1).

A core of a rows x columns mesh holds tiles [m, k] and [k, n] in lcm(rows, columns) chunks. Per
step, one chunk of either moves:

- cyclic_shift: two hops on interleaved axes, hidden behind the product of the chunk; before,
  operands that the host has not skewed turn by at most half the ring.
- cannon: the same in natural order, so that the message around the end goes N - 1 hops; one on a
  whole ring of a torus, where both are the same.
- summa: a panel of either operand goes to a whole line, N - 1 hops, both ways out of its owner's
  one link to the router; hidden behind the product of the panels before.
- allgather: N - 1 steps first, then one product, with room for N tiles of both operands.

Predictions used to choose; ``meshc estimate`` counts the programs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm

from meshc.cost.operations import Tile, message, overlapped, product, shifts
from meshc.cost.terms import Cost
from meshc.devices import Device

ALGORITHMS = ("cyclic_shift", "cannon", "summa", "allgather")


@dataclass(frozen=True)
class EmittedStep:
    """A step of a product as emitted CSL does it: ``cycles`` of the kernel, in ``steps`` of which
    transfers stand still; ``words`` that a core sends of either operand, as many as it receives,
    each of which takes ``starts`` to begin. Those of the left one are ``sums`` that move behind the
    kernel, or move beside it. Before the first step the operand ``turned`` moves ``turns`` times.
    ``once`` are the copies around all steps. A round of either takes ``round_`` besides, and a
    ``join`` more where both operands move. The product of chunks that are all there takes
    ``whole``."""

    cycles: int
    steps: int
    words: tuple[int, int]
    starts: tuple[int, int]
    sums: bool
    turned: int
    turns: int
    once: int
    round_: int
    join: int
    whole: int

    def cost(self, rounds: int, arrives: float) -> Cost:
        """All ``rounds``, of which the last moves nothing; a word is there after ``arrives``."""
        moving = [n for n in (0, 1) if self.words[n]]
        waits, overhead = 0.0, 0
        if moving:
            started = 2 * sum(self.starts[n] for n in moving)
            first = self.starts[moving[-1] if self.sums else moving[0]]
            moved = first + self.steps + 2 * sum(self.words)
            late = self.words[0] + arrives if self.sums and self.words[0] else 0.0
            ends = (started + self.cycles + late, moved, first + max(self.words) + arrives)
            waits = max(ends) - started - self.cycles
            overhead = started + self.round_ + (self.join if len(moving) > 1 else 0)
        around = Cost(waits=waits, overhead=overhead) * (rounds - 1)
        start, words = self.starts[self.turned], self.words[self.turned]
        transfer = max(2 * words, start, words + arrives)
        turning = Cost(transfer=transfer, overhead=start + self.round_)
        return Cost(self.cycles * rounds + self.once) + around + turning * self.turns

    def gathered(self, rounds: int, arrives: float) -> Cost:
        """All chunks come in ``rounds``, then they are multiplied."""
        starts = 2 * sum(
            start for start, words in zip(self.starts, self.words, strict=True) if words
        )
        overhead = starts + self.round_ + (self.join if all(self.words) else 0)
        waits = max(2 * sum(self.words), max(self.words) + arrives)
        return Cost(self.whole + self.once) + Cost(waits=waits, overhead=overhead) * rounds


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
    emitted: EmittedStep | None = None

    @property
    def steps(self) -> int:
        """Chunks of the contraction."""
        return lcm(self.rows, self.columns)

    @property
    def chunk(self) -> int:
        """Lanes of the contraction in a chunk."""
        return ceil(self.k * self.columns / self.steps)

    @property
    def product(self) -> Tile:
        """The product of two chunks; types of two bytes are computed at the rate of f16."""
        dtype = "f32" if self.bytes_each == 4 else "f16"
        return Tile(self.m, self.chunk, self.n, dtype, self.bytes_each)

    @property
    def side(self) -> int:
        """Cores along the longer axis."""
        return max(self.rows, self.columns)


@dataclass(frozen=True)
class ProductCost:
    """One algorithm: predicted cost, longest way of a step, colors and bytes of operands."""

    algo: str
    cost: Cost
    hops: int
    stages: int
    colors: int
    bytes: int

    @property
    def cycles(self) -> float:
        """Predicted cycles."""
        return self.cost.total

    def __str__(self) -> str:
        return (
            f"{self.algo} {self.cycles:.0f} cycles, {self.hops} hops and {self.stages} stages "
            f"a step, {self.colors} colors, {self.bytes} bytes"
        )


def product_costs(tiles: Tiles, device: Device, *axes: str) -> dict[str, ProductCost]:
    """Costs of all algorithms by name; ``axes`` are those that operands move along, the slowest of
    which sets the pace. Without them all axes are joined alike."""
    costs = [_costs(tiles, device.along(axis), _closes(tiles, device, axis)) for axis in axes]
    costs = costs or [_costs(tiles, device, closes=False)]
    return {algo: max((c[algo] for c in costs), key=lambda c: c.cycles) for algo in ALGORITHMS}


def _closes(tiles: Tiles, device: Device, axis: str) -> bool:
    """Whether the cores along ``axis`` are a whole ring."""
    return device.closes(axis, tiles.rows if axis == device.axes.down else tiles.columns)


def _costs(tiles: Tiles, device: Device, closes: bool) -> dict[str, ProductCost]:
    """``closes`` says that cores in natural order are a ring of neighbours."""
    chunk = tiles.product
    words = max(chunk.words(extent, tiles.chunk, device) for extent in (tiles.m, tiles.n))
    emitted = tiles.emitted
    work = product(chunk, device) if emitted is None else Cost(emitted.cycles)
    last = tiles.side - 1
    small, around, far = (1, 1, tiles.side // 2) if closes else (min(2, last), last, last)

    def shifting(hops: int) -> Cost:
        if emitted is not None:
            return emitted.cost(tiles.steps, message(0, hops, device).total)
        turns = tiles.steps // 2 if tiles.turn_left or tiles.turn_right else 0
        moved = message(words, hops, device)
        each = overlapped(work, moved, tiles.steps, tiles.steps, device)
        return each + shifts(turns, words, hops, device)

    def gathering() -> Cost:
        if emitted is not None:
            return emitted.gathered(last, message(0, small, device).total)
        return shifts(last, words, small, device) + work * tiles.steps

    hand = message(2 * words, far, device)
    costs = {
        "cyclic_shift": shifting(small),
        "cannon": shifting(around),
        "summa": hand + overlapped(work, hand, tiles.steps, tiles.steps, device),
        "allgather": gathering(),
    }
    ways = {
        "cyclic_shift": (small, 1),
        "cannon": (around, 1),
        "summa": (far, 1),
        "allgather": (small, 1),
    }
    return {
        algo: ProductCost(algo, costs[algo], *ways[algo], *_room(tiles, algo))
        for algo in ALGORITHMS
    }


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
