"""Contiguous groups of layers, and what the layers of a module cost beside each other.

Layered prefill (arXiv 2510.08055, section 4) reads a prompt by groups of layers, one group in each
iteration; the dearest group decides how long decoding waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph


def layer_costs(module: Module) -> tuple[float, ...]:
    """For each layer of the loops of a graph-level ``module``, in order, the elements of its
    weights: what a group that reads a prompt loads, and for matrices what it multiplies with."""
    weights = {param.value for param in module.function.params if param.role == "weight"}
    found: list[float] = []
    for op in module.function.body.ops:
        if isinstance(op, graph.Repeat):
            stacks = [value for value in op.tensors()[op.carried :] if value in weights]
            one = sum(prod(tensor_type(value).shape(module.dims)[1:]) for value in stacks)
            found += [float(max(one, 1))] * module.dims[op.dim]
    return tuple(found)


def balanced_groups(costs: Sequence[float], count: int) -> tuple[range, ...]:
    """``count`` contiguous groups of layers of these ``costs``, the dearest group being as cheap as
    it can be; among such divisions, the one whose groups are cut earliest towards equal shares.

    There are never more groups than layers. Equal layers that are no multiple of ``count`` give
    groups whose sizes differ by at most one, larger ones first. Costs are positive.
    """
    layers = len(costs)
    count = max(1, min(count, layers))
    if len(set(costs)) == 1:
        small, more = divmod(layers, count)
        ends = [0]
        for group in range(count):
            ends.append(ends[-1] + small + (group < more))
        return tuple(range(a, b) for a, b in pairwise(ends))
    return _cut(costs, count, _least_bound(costs, count))


def _least_bound(costs: Sequence[float], count: int) -> float:
    """The cost of the dearest group in the best division: dynamic programming over prefixes."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = list(sums)
    for groups in range(2, count + 1):
        best = [
            min((max(best[k], sums[n] - sums[k]) for k in range(groups - 1, n)), default=sums[n])
            for n in range(len(costs) + 1)
        ]
    return best[-1]


def _cut(costs: Sequence[float], count: int, bound: float) -> tuple[range, ...]:
    """Groups within ``bound``, each filled up to an equal share of what is left."""
    limit = bound * (1 + 1e-12)
    # What the layers from each one on need at least, in groups within the limit.
    needs = [_groups_needed(costs[start:], limit) for start in range(len(costs) + 1)]
    found: list[range] = []
    start = 0
    for left in range(count, 0, -1):
        share = sum(costs[start:]) / left
        stop, cost = start, 0.0
        while stop < len(costs) - (left - 1) and cost + costs[stop] <= limit:
            enough = stop > start and cost + costs[stop] / 2 > share
            if enough and needs[stop] <= left - 1:
                break
            cost += costs[stop]
            stop += 1
        found.append(range(start, stop))
        start = stop
    return tuple(found)


def _groups_needed(costs: Sequence[float], limit: float) -> int:
    """The fewest groups within ``limit``: each is filled as far as it goes."""
    groups, cost = 0, limit
    for own in costs:
        if groups == 0 or cost + own > limit:
            groups, cost = groups + 1, 0.0
        cost += own
    return groups
