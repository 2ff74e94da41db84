"""PLMR cost model: predicted cycles of distributed operations from a device's numbers.

A local tile product costs its multiply-adds at the device's rate, plus ``vector_cycles`` for each
vector instruction and ``scalar_cycles`` for each scalar operand of its inner loops. A message of
``words`` over ``hops`` costs ``hops * alpha + words / width + beta``: alpha is the link's
``hop_cycles``, beta its ``route_cycles`` (receive, combine, send again). What computes and what
travels in one step overlap; each step adds ``step_cycles``.

Calibration of wse2: with alpha = 1 and peak multiply-adds taken from the machine, the other five
constants fit the 12 prefill rows (WaferLLM Table 3) within 2.3 % and the 12 decode rows (Table 4)
within 1.5 %; the tests repeat this. They are constants of that paper's kernels, read here as
predictions used to choose between algorithms; the fabric simulator measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from meshc.analysis.reduction import LinkCost
from meshc.devices import Device

COMBINE_CYCLES_PER_WORD = 4.0
"""Receive, add and send one word in a K-tree phase, pipelined over the message (same fit)."""


@dataclass(frozen=True)
class Cost:
    """Cycles on the critical path: ``compute`` and ``transfer`` that no other hides, the rest."""

    compute: float = 0.0
    transfer: float = 0.0
    overhead: float = 0.0

    @property
    def cycles(self) -> float:
        """All of it."""
        return self.compute + self.transfer + self.overhead

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.compute + other.compute,
            self.transfer + other.transfer,
            self.overhead + other.overhead,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.compute * times, self.transfer * times, self.overhead * times)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Tile:
    """A local product ``[m, k] @ [k, n]`` on one core, of ``bytes_each`` bytes per element."""

    m: int
    k: int
    n: int
    dtype: str = "f16"
    bytes_each: int = 2

    def words(self, rows: int, columns: int, device: Device) -> float:
        """Link words of a ``rows x columns`` block."""
        return ceil(rows * columns * self.bytes_each / device.link.word_bytes)


def link_cost(device: Device) -> LinkCost:
    """Alpha, beta, cycles per word and per step of the device, as reductions take them."""
    link = device.link
    word_cycles = 1 / link.words_per_cycle
    per_step = device.step_cycles, link.relay_cycles
    return LinkCost(link.hop_cycles, link.route_cycles, word_cycles, *per_step)


def message(words: float, hops: float, device: Device) -> float:
    """Cycles until ``words`` sent at once have arrived ``hops`` away."""
    link = device.link
    return hops * link.hop_cycles + words / link.words_per_cycle + link.route_cycles


def product_cycles(tile: Tile, device: Device) -> float:
    """One local tile product: one vector instruction per element of the second factor."""
    macs = tile.m * tile.k * tile.n / device.macs(tile.dtype)
    vectors = tile.k * tile.n * device.vector_cycles
    return macs + vectors + tile.m * tile.k * device.scalar_cycles


def cyclic_shift(tile: Tile, steps: int, device: Device, hops: int = 2) -> Cost:
    """MeshGEMM and Cannon: ``steps`` products while both factors move to the next core.

    ``hops`` is the longest step: 2 on an interleaved ring (WaferLLM section 5), ``N - 1`` for
    Cannon in natural order.
    """
    moved = max(tile.words(tile.m, tile.k, device), tile.words(tile.k, tile.n, device))
    return _overlapped(product_cycles(tile, device), message(moved, hops, device), steps, device)


def cyclic_shift_transposed(tile: Tile, steps: int, device: Device, hops: int = 2) -> Cost:
    """``A @ transpose(B)`` without a transpose: B and the accumulator move (dist-GEMM-T)."""
    moved = max(tile.words(tile.n, tile.k, device), tile.words(tile.m, tile.n, device))
    return _overlapped(product_cycles(tile, device), message(moved, hops, device), steps, device)


def alignment(tile: Tile, size: int, device: Device, hops: int = 2) -> Cost:
    """Cannon skew of one factor on a ring: up to ``size - 1`` shifts, of which nothing hides."""
    words = tile.words(tile.m, tile.k, device)
    return Cost(transfer=message(words, hops, device), overhead=device.step_cycles) * (size - 1)


def local_gemv(k: int, n: int, dtype: str, device: Device) -> Cost:
    """``[k] @ [k, n]`` on one core: ``k`` vector operations of length ``n``."""
    return Cost(compute=k * n / device.macs(dtype), overhead=k * device.op_cycles)


def centred_tree(groups: Sequence[int], size: int, words: float, device: Device) -> float:
    """K-tree all-reduce as published: roots in the middle of their groups, messages pipelined.

    Sum over phases of ``g / 2`` routing stages, the way to the centre and back, and the combining
    of each word. (WaferLLM section 6 with the factor of pitfall "K/2 times routing" put right:
    ``K / 2 * N^(1/K)`` stages.) Programs that meshc emits reduce along whole chains; their
    prediction is ``reduction.tree_cycles``.
    """
    stages = sum(group / 2 for group in groups)
    first = groups[0] if groups else 1
    travel = (size + first / 2) * device.link.hop_cycles
    combine = COMBINE_CYCLES_PER_WORD * words * len(groups)
    return stages * device.link.route_cycles + travel + combine


def pipelined_chain(words: float, cores: int, ramp_cycles: float = 2.0) -> float:
    """Reduce along a chain word by word: ``B + (2 T_R + 2)(P - 1)`` (HPDC'24, section on 1-D)."""
    return words + (2 * ramp_cycles + 2) * (cores - 1)


def broadcast(words: float, size: int, device: Device) -> Cost:
    """Multicast from one end of ``size`` cores to all."""
    hops = size - 1 if device.link.topology == "mesh" else 1
    return Cost(transfer=message(words, hops, device))


def kv_shift(words: float, device: Device) -> Cost:
    """Shift-based KV cache: one row of entries moves to the neighbour above, all rows at once."""
    return Cost(transfer=message(words, 1, device), overhead=device.op_cycles)


def _overlapped(compute: float, transfer: float, steps: int, device: Device) -> Cost:
    """``steps`` times the longer of the two; the last step moves nothing."""
    exposed = max(0.0, transfer - compute)
    return Cost(compute * steps, exposed * (steps - 1), device.step_cycles * steps)
