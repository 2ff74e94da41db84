"""Rounds of a loop that do the same, which are predicted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block
from meshc.ir.ops import task, tile
from meshc.ir.views import Point, Range, View

Decision = tuple[str, ...]
"""Conditions and counts of what is done, in which a round of a loop has been put."""


def decided(block: Block, name: str, value: int) -> Decision:
    """What is done in ``block``, not only where, as far as the ``value`` of ``name`` decides it."""
    found = []
    for op in block.walk():
        parts: list[Cond | Expr | None] = [op.when]
        if isinstance(op, tile.For):
            parts.append(op.count)
        if isinstance(op, task.Stream) and op.below is not None:
            parts += [op.below, along(op.view, op.dim)[0]]
        found += [
            str(part.substitute({name: value}))
            for part in parts
            if part is not None and name in part.free_vars
        ]
    return tuple(found)


def repeated(kinds: Sequence[Decision]) -> Iterator[tuple[int, Sequence[Decision]]]:
    """``kinds`` of rounds in order, as pieces that repeat and how often: the shortest of which all
    are made, the last time perhaps not to its end, else those that are the same one behind the
    other."""
    for length in range(1, len(kinds) // 2 + 1):
        if all(one == other for one, other in zip(kinds, kinds[length:], strict=False)):
            times, rest = divmod(len(kinds), length)
            yield times, kinds[:length]
            if rest:
                yield 1, kinds[:rest]
            return
    for _, same in groupby(kinds):
        each = list(same)
        yield len(each), each[:1]


def along(view: View, dim: int) -> tuple[Expr, int]:
    """Where a view begins in a dim of its buffer, and how far it reaches. A range has no steps."""
    index = view.indices[dim] if dim < len(view.indices) else None
    if isinstance(index, Range):
        return index.start, index.extent.constant
    if isinstance(index, Point):
        return index.at, 1
    return Expr.const(0), view.buffer_type.shape[dim]
