"""Layers of dense transformers on a wafer, by the three systems that WaferLLM (OSDI 2025) timed.

``WAFERLLM`` are the paper's own kernels, with the algorithms and the placement that it describes:
MeshGEMM for prompts, and products of a vector whose sums go through two-phase trees for decode
steps. ``T10`` and ``LADDER`` are two compilers of others, which the authors ported: the one takes
all cores to be equally far from each other, the other takes memory to be shared. What the paper
says of them gives the form of their cost; each has constants that are fitted to its rows.

All three are of full multi-head attention, which is what was timed, and of one layer times their
number. They use the same operations as the passes, but for the tile product of the paper's kernel,
which is not the one that meshc emits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Protocol

from meshc.cost.least_squares import Constants
from meshc.cost.operations import Tile, message, overlapped, shifts
from meshc.cost.terms import Cost
from meshc.devices import Device

ELEMENT_BYTES = 2
"""Bytes of a weight: f16."""
REDUCTIONS = 10
"""All-reduces of a layer's decode step: two norms, q, k, v, score maximum and sum in one, values,
output, gate and up, down."""


@dataclass(frozen=True)
class Layer:
    """A layer of full multi-head attention, whose heads together are as wide as ``hidden``, and a
    gated feed-forward part with ``inner`` values."""

    hidden: int
    inner: int


class System(Protocol):
    """How a system computes layers on ``side`` x ``side`` cores. The constants of its prompts and
    steps start a fit; ``beneath`` are those that it shares with another system."""

    @property
    def name(self) -> str:
        """What the paper calls it."""

    @property
    def of_prompts(self) -> Constants:
        """Constants of :meth:`prompt_layer`, in cycles."""

    @property
    def of_steps(self) -> Constants:
        """Constants of :meth:`step_layer`, in cycles."""

    def prompt_layer(
        self, layer: Layer, side: int, tokens: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of one layer of a prompt."""

    def step_layer(
        self, layer: Layer, side: int, context: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of one layer of a token behind ``context`` others."""


@dataclass(frozen=True)
class MeshKernels:
    """WaferLLM's own."""

    name: str = "WaferLLM"
    of_prompts: Constants = field(
        default_factory=lambda: {"vector_cycles": 4, "result_cycles": 4, "step_cycles": 200}
    )
    of_steps: Constants = field(default_factory=lambda: {"route_cycles": 25, "op_cycles": 25})

    def prompt_layer(
        self, layer: Layer, side: int, tokens: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of the products of a layer by MeshGEMM."""
        return sum(
            (mesh_gemm(tile, side, own, device) for tile in products(layer, side, tokens)), Cost()
        )

    def step_layer(
        self, layer: Layer, side: int, context: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of a token's vector products, and of its reductions by trees."""
        reduced = centred_tree(balanced(side), side, own, device) * REDUCTIONS
        return reduced + vector_products(layer, side, context, own, device)


@dataclass(frozen=True)
class EquallyFar:
    """T10: the tiles of a step are fetched from cores anywhere on the line, and so are sums."""

    name: str = "T10"
    of_prompts: Constants = field(
        default_factory=lambda: {"word_hop_cycles": 3, "step_hop_cycles": 100}
    )
    of_steps: Constants = field(default_factory=lambda: {"sum_core_cycles": 20})

    def prompt_layer(
        self, layer: Layer, side: int, tokens: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of the tiles of a core, of which one operand comes from each core of a line."""
        tiles = products(layer, side, tokens)
        words = sum(tile.moved(device) for tile in tiles)
        hops = side * side  # of all steps, each over as many cores as a line has
        moved = hops * (own["word_hop_cycles"] * words + own["step_hop_cycles"] * len(tiles))
        return tile_products(tiles, side, own, device) + Cost(transfer=moved)

    def step_layer(
        self, layer: Layer, side: int, context: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of a token's vector products, and of reductions core by core along a line."""
        sums = Cost(stages=REDUCTIONS * side * own["sum_core_cycles"])
        return sums + vector_products(layer, side, context, own, device)


@dataclass(frozen=True)
class SharedMemory:
    """Ladder: both tiles of a step come through the mesh, and so do weights of a decode step."""

    name: str = "Ladder"
    of_prompts: Constants = field(
        default_factory=lambda: {"word_hop_cycles": 2, "step_hop_cycles": 800}
    )
    of_steps: Constants = field(
        default_factory=lambda: {"sum_core_cycles": 400, "weight_hop_cycles": 1}
    )

    def prompt_layer(
        self, layer: Layer, side: int, tokens: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of the tiles of a core, both operands of which come through the mesh."""
        tiles = products(layer, side, tokens)
        words = sum(t.words(t.m, t.k, device) + t.words(t.k, t.n, device) for t in tiles)
        hops = side * side
        moved = hops * (own["word_hop_cycles"] * words + own["step_hop_cycles"] * len(tiles))
        return tile_products(tiles, side, own, device) + Cost(transfer=moved)

    def step_layer(
        self, layer: Layer, side: int, context: int, own: Constants, device: Device
    ) -> Cost:
        """Cycles of a token's vector products, of its weights through the mesh, and of reductions
        core by core."""
        weights = sum(k * n for k, n in matrices(layer, side, context))
        moved = Cost(transfer=side * weights * own["weight_hop_cycles"])
        sums = Cost(stages=REDUCTIONS * side * own["sum_core_cycles"])
        return moved + sums + vector_products(layer, side, context, own, device)


WAFERLLM, T10, LADDER = MeshKernels(), EquallyFar(), SharedMemory()


# --- prompts


def products(layer: Layer, side: int, tokens: int) -> list[Tile]:
    """Tiles of a core in the products of a layer: four projections, scores, weighted values, gate,
    up and down."""
    rows, e, f = ceil(tokens / side), ceil(layer.hidden / side), ceil(layer.inner / side)
    tiles = [(rows, e, e)] * 4 + [(rows, e, rows), (rows, rows, e)]
    tiles += [(rows, e, f)] * 2 + [(rows, f, e)]
    return [Tile(*extents) for extents in tiles]


def tile_product(tile: Tile, own: Constants, device: Device) -> Cost:
    """The paper's kernel: for each element of the right tile a multiply-accumulate of a column of
    the left one, in vectors of as many lanes as are multiplied at once, and something for each
    result. (The released code calls one such operation for each element.)"""
    vectors = ceil(tile.m / device.macs(tile.dtype)) * tile.k * tile.n
    starts = own["vector_cycles"] * tile.k * tile.n + own["result_cycles"] * tile.m * tile.n
    return Cost(compute=vectors + starts)


def tile_products(tiles: Sequence[Tile], side: int, own: Constants, device: Device) -> Cost:
    """The products of all steps, and what steps take beside."""
    steps = Cost(overhead=len(tiles) * own["step_cycles"])
    return (sum((tile_product(tile, own, device) for tile in tiles), Cost()) + steps) * side


def mesh_gemm(tile: Tile, side: int, own: Constants, device: Device, hops: int = 2) -> Cost:
    """A product whose operands go round a ring: ``hops`` are two on an interleaved one, and
    ``side - 1`` of Cannon's algorithm in natural order (WaferLLM section 5)."""
    moved = message(tile.moved(device), hops, device)
    return _stepped(tile, moved, side, own, device)


def summa(tile: Tile, side: int, own: Constants, device: Device) -> Cost:
    """A product whose panels go to a whole line, both ways out of their owner's one link."""
    moved = message(2 * tile.moved(device), side - 1, device)
    return moved + _stepped(tile, moved, side, own, device)


def _stepped(tile: Tile, moved: Cost, side: int, own: Constants, device: Device) -> Cost:
    timed = device.with_numbers(step_cycles=own["step_cycles"])
    return overlapped(tile_product(tile, own, device), moved, side, side - 1, timed)


# --- decode steps


def matrices(layer: Layer, side: int, context: int) -> list[tuple[int, int]]:
    """Extents of what a core multiplies vectors by: weights, and keys and values."""
    e, f, s = ceil(layer.hidden / side), ceil(layer.inner / side), ceil(context / side)
    return [(e, e)] * 4 + [(e, f)] * 2 + [(f, e), (e, s), (s, e)]


def vector_products(layer: Layer, side: int, context: int, own: Constants, device: Device) -> Cost:
    """All products of a vector, with one vector operation for each row of a matrix; gate and up
    share theirs."""
    found = matrices(layer, side, context)
    rows = sum(k for k, _ in found) - ceil(layer.hidden / side)
    macs = sum(k * n for k, n in found) / device.macs("f16")
    return Cost(compute=macs, overhead=rows * own["op_cycles"])


def balanced(side: int) -> tuple[int, int]:
    """Groups of a two-phase tree."""
    group = ceil(sqrt(side))
    return group, ceil(side / group)


def centred_tree(
    groups: Sequence[int], size: int, own: Constants, device: Device, back: bool = True
) -> Cost:
    """K-tree reduction as published: roots in the middle of their groups, messages pipelined;
    ``back`` says that all cores get the sum.

    Sum over phases of ``g / 2`` routing stages, the way to the centre and back. Words are few and
    cost nothing of their own: a constant for each is fitted as zero. (WaferLLM section 6 with the
    factor of "K/2 times routing" put right: ``K / 2 * N^(1/K)`` stages.) Programs that meshc emits
    reduce along whole chains; their prediction is ``reductions.tree_cost``.
    """
    stages = sum(group / 2 for group in groups)
    travel = ((size if back else size / 2) + groups[0] / 2) * device.link.hop_cycles
    return Cost(transfer=travel, stages=stages * own["route_cycles"])


def mesh_gemv(size: int, side: int, own: Constants, device: Device, groups: Sequence[int]) -> Cost:
    """A vector times a ``size`` x ``size`` matrix in f16, whose results stay at the roots of trees
    of ``groups``; one group is a chain to the middle of the line."""
    e = ceil(size / side)
    work = Cost(compute=e * e / device.macs("f16"), overhead=e * own["op_cycles"])
    return work + centred_tree(groups, side, own, device, back=False)


# --- from prompt to decode steps


def replaced(weights: int, side: int, own: Constants, device: Device) -> Cost:
    """Weights that change from the placement of prompts to that of decode steps (section 4.4):
    what each of ``side`` x ``side`` cores holds goes along a row and along a column, from core to
    core. Weights for which these cores have no room came in from the others by the same way."""
    share = weights * ELEMENT_BYTES / side**2
    room = device.room_bytes
    surplus = 0.0 if room is None else max(share - room, 0.0)
    words = (share + surplus) / device.link.word_bytes
    return shifts(2 * side, words, 1, device.with_numbers(step_cycles=own["step_cycles"]))
