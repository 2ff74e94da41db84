"""Which way of writing a product takes the fewest cycles.

What may be tried is said by :class:`Choices`, so that each can be left out and its gain be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as crossed
from typing import NamedTuple

from meshc.analysis.csl.factors import Call, Product, batch_variable, with_joining
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.products import (
    MOST_SCRATCH_BYTES,
    Plan,
    deepest,
    most_packed,
    outer_blocks,
    planned,
    zeros,
)
from meshc.support.diagnostics import fail

_BATCHED = 17
"""Cycles of the loop around a product of a batch, and of where its operands begin."""


@dataclass(frozen=True)
class Choices:
    """What is tried beside the plain ways: ``blocks`` of extents that only the run knows, registers
    that are ``rebased`` from row to row, loops over products ``joined`` to their rows or to their
    contraction, rows of sums that are ``fresh``, without zeros before them."""

    blocks: bool = True
    rebased: bool = True
    joined: bool = True
    fresh: bool = True


class Best(NamedTuple):
    """The ``cycles`` of all products of a call in a ``way``, of which so many are vector
    ``steps``."""

    cycles: int
    way: str
    steps: int


def best(call: Call, costs: Costs, free_bytes: int, accumulate: bool, tried: Choices) -> Best:
    """The way in which a ``call`` without joined loops takes the fewest cycles, with at most
    ``free_bytes`` of scratch. Fails with ``csl-view`` where there is none."""
    joined = call.joined() if tried.joined else call
    found = []
    for one in (call,) if joined == call else (call, joined):
        adds = accumulate or one.adds
        plan = cheapest(one.each(batch_variable), costs, free_bytes, adds, tried)
        if plan is None:
            continue
        way = plan.way if one is call else with_joining(plan.way)
        cycles = cycles_of_all(one, plan, costs, accumulate)
        found.append(Best(cycles, way, one.times * plan.steps))
    if not found:
        name = call.product.c.buffer.name
        fail("csl-view", f"the rows of a product into %{name} are too far apart")
    return min(found)


def cycles_of_all(call: Call, plan: Plan, costs: Costs, accumulate: bool) -> int:
    """Cycles of the products of a ``call``, each of which goes as planned; products that are added
    up need zeros before the first of them, if the call does not ``accumulate`` itself."""
    once = 0 if accumulate or not call.adds else zeros(plan.product, costs)
    return once + call.times * (plan.cycles + (_BATCHED if call.batches else 0))


def cheapest(
    product: Product, costs: Costs, free_bytes: int, accumulate: bool, tried: Choices
) -> Plan | None:
    """The cheapest way, with at most ``free_bytes`` of scratch; None where there is none. What it
    needs in zeros when it is not to ``accumulate`` counts as part of it. Extents of the run count
    as the most that they can be."""
    ways = [Plan("looped", product, 0, flipped=flipped).way for flipped in (False, True)]
    most = min(free_bytes, MOST_SCRATCH_BYTES)
    packed = (product.constant or tried.blocks) and not product.in_chunks
    for block in outer_blocks(product) if packed else ():
        depth = deepest(product, block, most)
        ways += [Plan("outer", product, 0, depth, block).way] if depth else []
    turned = (False,) if product.in_chunks else (False, True)
    for flipped, rebased in crossed(turned, (False, True) if tried.rebased else (False,)):
        how = {"flipped": flipped, "rebased": rebased}
        ways.append(Plan("mapped", product, 0, **how).way)
        if tried.fresh and not accumulate and not product.in_chunks:
            ways.append(Plan("mapped", product, 0, fresh=True, **how).way)
        block = most_packed(product.flipped() if flipped else product, most) if packed else 0
        ways += [Plan("packed", product, 0, block=block, **how).way] if block else []
    found = [p for way in ways if (p := planned(product, way, costs, accumulate)) is not None]
    return min(found, key=lambda p: p.cycles, default=None)
