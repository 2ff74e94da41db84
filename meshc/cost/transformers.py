"""Layers of dense transformers on a wafer, by the kernels that WaferLLM (OSDI 2025) measured.

Calibration of wse2: with alpha = 1 and peak multiply-adds taken from the machine, the numbers that
it calls calibrated fit the 12 prefill rows (Table 3) within 2.3 % and the 12 decode rows (Table 4)
within 1.5 %; the tests repeat this. They are constants of that paper's kernels, read here as
predictions used to choose between algorithms; the fabric simulator measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from meshc.cost.operations import Tile, cyclic_shift
from meshc.cost.terms import Cost
from meshc.devices import Device


@dataclass(frozen=True)
class Layer:
    """A layer of full multi-head attention, whose heads together are as wide as ``hidden``, and a
    gated feed-forward part with ``inner`` values."""

    hidden: int
    inner: int


def prefill_layer(layer: Layer, side: int, tokens: int, device: Device) -> Cost:
    """One layer of a prompt of ``tokens`` on ``side`` x ``side`` cores: four projections, scores,
    weighted values, gate, up and down, each a MeshGEMM of tiles."""
    rows, e, f = ceil(tokens / side), ceil(layer.hidden / side), ceil(layer.inner / side)
    tiles = [(rows, e, e)] * 4 + [(rows, e, rows), (rows, rows, e)]
    tiles += [(rows, e, f)] * 2 + [(rows, f, e)]
    return sum((cyclic_shift(Tile(*extents), side, device) for extents in tiles), Cost())


def decode_layer(layer: Layer, side: int, context: int, device: Device) -> Cost:
    """One layer of a token after ``context`` others on ``side`` x ``side`` cores: products of a
    vector, each of whose sums goes through a two-phase tree."""
    e, f, s = ceil(layer.hidden / side), ceil(layer.inner / side), ceil(context / side)
    group = ceil(sqrt(side))
    groups = (group, ceil(side / group))
    # Two norms, q, k, v, score maximum and sum in one, values, output, gate and up, down.
    payload = [1, 1, e, e, e, s, e + 2, e, 2 * f, e]
    reduced = sum((centred_tree(groups, side, n / 2, device) for n in payload), Cost())
    products = [(e, e)] * 4 + [(e, f)] * 2 + [(f, e), (e, s), (s, e)]
    macs = sum(k * n for k, n in products) / device.macs("f16")
    started = 7 * e + 2 * s  # one vector operation for each weight row; gate and up share theirs
    return reduced + Cost(compute=macs, overhead=started * device.op_cycles)


def centred_tree(groups: Sequence[int], size: int, words: float, device: Device) -> Cost:
    """K-tree all-reduce as published: roots in the middle of their groups, messages pipelined.

    Sum over phases of ``g / 2`` routing stages, the way to the centre and back, and the combining
    of each word. (WaferLLM section 6 with the factor of pitfall "K/2 times routing" put right:
    ``K / 2 * N^(1/K)`` stages.) Programs that meshc emits reduce along whole chains; their
    prediction is ``reductions.tree_cost``.
    """
    stages = sum(group / 2 for group in groups)
    first = groups[0] if groups else 1
    travel = (size + first / 2) * device.link.hop_cycles
    combine = device.real("combine_cycles") * words * len(groups)
    return Cost(compute=combine, transfer=travel, stages=stages * device.link.route_cycles)
