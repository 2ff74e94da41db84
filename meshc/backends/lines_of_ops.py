"""Which lines of an emitted file an op became: ops and stretches of text that say the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Wait


class Stretch(NamedTuple):
    """Lines ``first`` to ``last`` of a file, counted from 1."""

    first: int
    last: int


def paired(
    ops: Iterable[tuple[Hashable, Op]], found: Iterable[tuple[Hashable, Stretch]]
) -> dict[Op, list[Stretch]]:
    """The stretches of each op, both of which have keys: of as many ops as there are stretches of a
    key each has one, in their order; of another number, as where code is shared, each has all."""
    mine, theirs = defaultdict(list), defaultdict(list)
    for key, op in ops:
        mine[key].append(op)
    for key, stretch in found:
        theirs[key].append(stretch)
    pairs: dict[Op, list[Stretch]] = {}
    for key, same in mine.items():
        there = theirs.get(key, [])
        for number, op in enumerate(same):
            alone = [there[number]] if len(there) == len(same) else there
            if alone:
                pairs.setdefault(op, []).extend(alone)
    return pairs


def completed(module: Module, known: Mapping[Op, Sequence[Stretch]]) -> dict[Op, list[Stretch]]:
    """``known``, and for ops that are no statement of their own the lines of what they are about:
    of a wait those of the transfers that it waits for, of a loop or a guard those of its body."""
    found = {op: [*stretches] for op, stretches in known.items()}
    makers = {value: op for op in module.walk() for value in op.results}
    for op in module.walk():
        if isinstance(op, Wait) and op not in found:
            waited = [s for token in op.tensors() for s in found.get(makers[token], ())]
            if waited:
                found[op] = [*dict.fromkeys(waited)]
    for block in module.blocks():
        _bodies(block, found)
    return found


def _bodies(block: Block, found: dict[Op, list[Stretch]]) -> None:
    for op in block.ops:
        for region in op.regions:
            _bodies(region, found)
        inside = [s for region in op.regions for one in region.ops for s in found.get(one, ())]
        if inside and op not in found:
            found[op] = [*dict.fromkeys(inside)]
